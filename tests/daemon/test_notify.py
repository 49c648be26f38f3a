"""What systemd is told, against a fake NOTIFY_SOCKET."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from msmon.daemon.notify import ServiceManager


class Receiver:
    """The service manager's end."""

    def __init__(self, address: str, variable: str) -> None:
        self.variable = variable
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address)
        self.socket.settimeout(2.0)

    def lines(self) -> list[str]:
        return self.socket.recv(4096).decode().splitlines()

    def waiting(self) -> bool:
        self.socket.setblocking(False)
        try:
            self.socket.recv(4096)
        except BlockingIOError:
            return False
        return True


@pytest.fixture(params=["path", "abstract"])
def receiver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Receiver]:
    if request.param == "path":
        path = os.path.relpath(tmp_path / "notify")  # short enough for a socket
        receiver = Receiver(path, path)
    else:
        name = f"msmon-test-{os.getpid()}"
        receiver = Receiver(f"\0{name}", f"@{name}")
    yield receiver
    receiver.socket.close()


def test_ready_names_pid_and_status_in_one_line_each(receiver: Receiver) -> None:
    ServiceManager({"NOTIFY_SOCKET": receiver.variable}).ready("two\nlines")
    assert receiver.lines() == ["READY=1", f"MAINPID={os.getpid()}", "STATUS=two lines"]


def test_reload_and_end_are_told(receiver: Receiver) -> None:
    manager = ServiceManager({"NOTIFY_SOCKET": receiver.variable})
    manager.reloading()
    manager.stopping()
    assert receiver.lines()[0] == "RELOADING=1"
    assert receiver.lines()[0] == "STOPPING=1"


def test_the_watchdog_is_fed_only_when_asked(receiver: Receiver) -> None:
    ServiceManager({"NOTIFY_SOCKET": receiver.variable}).beat()
    assert not receiver.waiting()


def test_the_watchdog_is_fed_twice_per_limit(receiver: Receiver) -> None:
    environ = {"NOTIFY_SOCKET": receiver.variable, "WATCHDOG_USEC": "60000000"}
    manager = ServiceManager(environ)
    for _ in range(3):
        manager.beat()
    assert receiver.lines() == ["WATCHDOG=1"]
    assert not receiver.waiting()


def test_a_watchdog_of_another_process_is_not_ours(receiver: Receiver) -> None:
    environ = {
        "NOTIFY_SOCKET": receiver.variable,
        "WATCHDOG_USEC": "1000000",
        "WATCHDOG_PID": str(os.getpid() + 1),
    }
    ServiceManager(environ).beat()
    assert not receiver.waiting()


def test_without_the_variable_nothing_happens(caplog: pytest.LogCaptureFixture) -> None:
    manager = ServiceManager({})
    manager.ready("up")
    manager.stopping()
    assert not caplog.records


def test_an_unreachable_socket_is_logged_and_no_more(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "none")}).ready("up")
    assert "the service manager can't be told READY=1" in caplog.text
