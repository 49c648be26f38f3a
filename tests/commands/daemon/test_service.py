"""msmon-daemon under a service manager: ready, reload, watchdog, end."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from msmon.bus.keys import KeyPair, key_file_text


@pytest.fixture
def directory() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="msmon-"))  # short enough for a socket
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def notified(directory: Path) -> Iterator[socket.socket]:
    receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    receiver.bind(str(directory / "notify"))
    receiver.settimeout(8.0)
    yield receiver
    receiver.close()


@pytest.fixture
def start(directory: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    running = []

    def start_daemon(*arguments: str, **variables: str) -> subprocess.Popen[str]:
        environ = {name: text for name, text in os.environ.items() if not name.startswith("MSMON")}
        environ.update(
            MSMON_RUNTIME_DIR=str(directory / "run"),
            MSMON_KEYS_DIR=str(directory / "keys"),
            NOTIFY_SOCKET=str(directory / "notify"),
        )
        environ.update(variables)
        running.append(
            subprocess.Popen(
                [sys.executable, "-W", "error", "-m", "msmon.commands.daemon", *arguments],
                env=environ,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return running[-1]

    yield start_daemon
    for process in running:
        if process.poll() is None:
            process.kill()
            process.wait()
        process.stderr.close()


def state(receiver: socket.socket) -> str:
    return receiver.recv(4096).decode().splitlines()[0]


def test_ready_comes_once_after_the_socket_and_stopping_at_the_end(
    start, notified: socket.socket, directory: Path
) -> None:
    process = start()
    assert state(notified) == "READY=1"
    assert (directory / "run" / "daemon.sock").is_socket()
    assert (directory / "run" / "daemon.pub").exists()
    process.send_signal(signal.SIGTERM)
    assert state(notified) == "STOPPING=1"
    assert process.wait(5.0) == 0


def test_the_main_loop_feeds_the_watchdog(start, notified: socket.socket) -> None:
    start(WATCHDOG_USEC="200000")
    assert state(notified) == "READY=1"
    assert [state(notified), state(notified)] == ["WATCHDOG=1", "WATCHDOG=1"]


def test_an_unreachable_manager_does_not_keep_it_from_starting(start, directory: Path) -> None:
    process = start(NOTIFY_SOCKET=str(directory / "nobody"))
    lines = [process.stderr.readline(), process.stderr.readline()]
    assert any(line.startswith("msmon-daemon ready") for line in lines)
    assert any("can't be told READY=1" in line for line in lines)


def test_a_reload_takes_what_can_change_and_names_what_waits(
    start, notified: socket.socket, directory: Path
) -> None:
    config = directory / "daemon.toml"
    config.write_text('log-level = "info"\n')
    process = start("--config", str(config))
    assert state(notified) == "READY=1"
    config.write_text('log-level = "debug"\nheartbeat-s = 5\n')
    process.send_signal(signal.SIGHUP)
    assert [state(notified), state(notified)] == ["RELOADING=1", "READY=1"]
    process.terminate()
    log = process.communicate()[1]
    assert "heartbeat-s changed; it takes effect at the next start" in log
    assert "read again" in log


def test_a_wrong_configuration_is_not_taken_at_reload(
    start, notified: socket.socket, directory: Path
) -> None:
    config = directory / "daemon.toml"
    config.write_text("")
    process = start("--config", str(config))
    assert state(notified) == "READY=1"
    config.write_text("colour = 1\n")
    process.send_signal(signal.SIGHUP)
    assert [state(notified), state(notified)] == ["RELOADING=1", "READY=1"]
    process.terminate()
    log = process.communicate()[1]
    assert process.returncode == 0
    assert "the configuration stays as it was" in log
    assert "unknown option colour" in log


def test_a_credential_takes_the_place_of_the_servers_key_file(
    start, notified: socket.socket, directory: Path
) -> None:
    pair = KeyPair.generate()
    credential = directory / "credentials" / "msmon.server.key_secret"
    credential.parent.mkdir()
    credential.write_text(
        key_file_text({"public-key": pair.public.decode(), "secret-key": pair.secret.decode()})
    )
    credential.chmod(0o440)  # as systemd leaves it where it gives access through an ACL
    start(CREDENTIALS_DIRECTORY=str(credential.parent))
    assert state(notified) == "READY=1"
    assert pair.public.decode() in (directory / "run" / "daemon.pub").read_text()
    assert not (directory / "keys" / "server.key_secret").exists()
