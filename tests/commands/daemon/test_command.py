"""msmon-daemon as a process: its options, its lock, its socket file, its end."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from msmon.bus.client import Client
from msmon.bus.endpoints import local_endpoint
from msmon.bus.messages import VersionRequest
from msmon.commands.daemon.command import listen_url, main, parse_listen
from msmon.errors import BusError, MsmonError, UsageError

DEADLINE_S = 30.0


@pytest.fixture(autouse=True)
def log_as_before() -> Iterator[None]:
    """Take back what ``main`` does to the log of this process: its stream ends with the test."""
    logger = logging.getLogger("msmon")
    handlers, level = list(logger.handlers), logger.level
    yield
    logger.handlers[:] = handlers
    logger.setLevel(level)


class Daemons:
    """Starts daemons that share one runtime directory."""

    def __init__(self, directory: Path) -> None:
        self.runtime = directory / "run"
        self.socket = self.runtime / "daemon.sock"
        self.environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith("MSMON")},
            "MSMON_RUNTIME_DIR": str(self.runtime),
            "MSMON_KEYS_DIR": str(directory / "keys"),
        }
        self.running: list[subprocess.Popen[str]] = []

    def popen(self, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "msmon.commands.daemon", *arguments],
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
        )
        self.running.append(process)
        return process

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start one and read its ready line."""
        process = self.popen(*arguments)
        line = process.stderr.readline()
        assert line.startswith(f"msmon-daemon ready: pid {process.pid}"), line
        return process

    def failure(self, *arguments: str) -> tuple[int, str]:
        """Start one that can't start; return its exit code and what it said."""
        _, text = (process := self.popen(*arguments)).communicate(timeout=DEADLINE_S)
        assert "Traceback" not in text
        return process.returncode, text

    def serving_pid(self) -> int:
        with Client(local_endpoint(self.environ), 2.0) as client:
            return client.request(VersionRequest()).daemon.pid


@pytest.fixture
def daemons() -> Iterator[Daemons]:
    directory = Path(tempfile.mkdtemp(prefix="msmon-"))
    daemons = Daemons(directory)
    yield daemons
    for process in daemons.running:
        process.kill()
        process.communicate()
    shutil.rmtree(directory)


def wait_for(condition: Callable[[], object], what: str) -> None:
    end_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < end_s:
        try:
            if condition():
                return
        except MsmonError:
            pass
        time.sleep(0.02)
    raise AssertionError(f"not in time: {what}")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_cleanly(daemons, number):
    process = daemons.start()
    process.send_signal(number)
    _, text = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0
    assert "Traceback" not in text


def test_a_second_daemon_is_told_the_pid_of_the_first(daemons):
    first = daemons.start()
    code, text = daemons.failure()
    assert code == 1
    assert f"pid {first.pid}" in text
    assert daemons.serving_pid() == first.pid


def test_it_starts_again_after_a_kill(daemons):
    first = daemons.start()
    first.kill()
    first.wait()
    assert daemons.socket.is_socket()
    second = daemons.start()
    assert daemons.serving_pid() == second.pid


def test_modes_of_the_files_where_nobody_else_may_connect(daemons):
    daemons.start("--allow-users", "nobody")
    modes = {
        path.name: stat.S_IMODE(path.stat().st_mode)
        for path in (daemons.runtime, *daemons.runtime.iterdir())
    }
    assert modes["run"] == 0o700
    assert modes["daemon.sock"] == 0o600
    assert modes["daemon.pub"] == 0o644


def test_modes_of_the_files_where_everybody_may_connect(daemons):
    daemons.start("--allow-users", "everybody")
    assert stat.S_IMODE(daemons.runtime.stat().st_mode) == 0o755
    assert stat.S_IMODE(daemons.socket.stat().st_mode) == 0o666


def test_a_socket_file_that_was_removed_is_bound_again(daemons):
    process = daemons.start()
    daemons.socket.unlink()
    wait_for(lambda: daemons.serving_pid() == process.pid, "the daemon is reachable again")


def test_a_runtime_directory_that_was_removed_is_made_again(daemons):
    process = daemons.start()
    shutil.rmtree(daemons.runtime)
    wait_for(lambda: daemons.serving_pid() == process.pid, "the daemon is reachable again")
    assert daemons.failure()[0] == 1


def test_a_directory_in_place_of_the_socket(daemons):
    daemons.socket.mkdir(parents=True)
    code, text = daemons.failure()
    assert code == 1
    assert "is a directory where the socket should be" in text
    with pytest.raises(BusError, match="is a directory"):
        local_endpoint(daemons.environ)


def test_a_runtime_directory_that_others_may_change_is_refused(daemons):
    daemons.runtime.mkdir()
    daemons.runtime.chmod(0o777)
    code, text = daemons.failure()
    assert code == 1
    assert f"chmod go-w {daemons.runtime}" in text


@pytest.mark.parametrize("variable", ["MSMON_RUNTIME_DIR", "MSMON_STATE_DIR", "MSMON_KEYS_DIR"])
def test_no_directory_of_the_daemon_lies_where_others_may_write(daemons, variable):
    shared = daemons.runtime.parent / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    daemons.environ[variable] = str(shared / "msmon")
    code, text = daemons.failure()
    assert code == 1
    assert f"chmod go-w {shared}" in text
    assert not (shared / "msmon").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make links for others")
def test_a_link_that_another_user_has_planted_in_the_state_directory_is_refused(daemons):
    owners = daemons.runtime.parent / "state" / "owners"
    owners.mkdir(parents=True)
    (owners / "uid-1000").symlink_to("/etc")
    os.chown(owners / "uid-1000", 1000, 1000, follow_symlinks=False)
    daemons.environ["MSMON_STATE_DIR"] = str(owners.parent)
    code, text = daemons.failure()
    assert code == 1
    assert f"{owners / 'uid-1000'} is a link of uid 1000" in text


@pytest.mark.parametrize("name", ["x" * 110, "ä" * 50])
def test_a_socket_path_that_is_too_long_names_the_setting(daemons, name):
    code, text = daemons.failure("--runtime-dir", f"/tmp/{name}")
    assert code == 1
    assert "MSMON_RUNTIME_DIR" in text


def test_keys_open_to_others_are_refused(daemons):
    keys = daemons.runtime.parent / "keys"
    keys.mkdir(mode=0o755)
    keys.chmod(0o755)
    code, text = daemons.failure()
    assert code == 1
    assert f"chmod 700 {keys}" in text


def test_a_port_in_use_ends_the_start(daemons):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        code, text = daemons.failure("--listen", f"127.0.0.1:{port}")
    assert code == 1
    assert f"127.0.0.1:{port}" in text


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--listen", "127.0.0.1:0"), "--listen"),
        (("--listen", "127.0.0.1:65536"), "--listen"),
        (("--listen", ":1778"), "--listen"),
        (("--listen", "0.0.0.0", "--insecure"), "--insecure"),
        (("--allow-users", "no such group"), "--allow-users"),
        (("--sink", "teleport"), "teleport"),
        (("--sink", "log:colour=1"), "colour"),
        (("--sink", "tensorboard"), "tensorboard needs a directory"),
        (("--sink", "tensorboard", "--check-config"), "tensorboard needs a directory"),
        (("--allow-users", ""), "--allow-users"),
        (("--heartbeat-s", "nan"), "--heartbeat-s"),
        (("--dance",), "--dance"),
    ],
)
def test_a_wrong_option_is_named(capsys, arguments, named):
    assert main(arguments) == 2
    assert named in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("0.0.0.0", ("0.0.0.0", 1778)),
        ("node7:9", ("node7", 9)),
        ("::1", ("::1", 1778)),
        ("[::1]", ("::1", 1778)),
        ("[fe80::1]:65535", ("fe80::1", 65535)),
    ],
)
def test_addresses_to_listen_on(text, parsed):
    assert parse_listen(text) == parsed


@pytest.mark.parametrize("text", ["", ":5", "a:", "a:b", "a:-1", "[::1", "[::1]5", "a:99999"])
def test_what_is_no_address(text):
    with pytest.raises(UsageError, match="--listen"):
        parse_listen(text)


def test_without_security_only_loopback_is_served_unless_forced():
    assert listen_url("127.0.0.1", 5, insecure=True, force=False) == "tcp://127.0.0.1:5"
    assert listen_url("0.0.0.0", 5, insecure=False, force=False) == "tcp://0.0.0.0:5"
    assert listen_url("0.0.0.0", 5, insecure=True, force=True) == "tcp://0.0.0.0:5"
    with pytest.raises(UsageError, match="loopback"):
        listen_url("0.0.0.0", 5, insecure=True, force=False)


def test_the_installed_outputs_are_listed_with_their_options(capsys):
    assert main(["--sink", "help"]) == 0
    text = capsys.readouterr().out
    assert "tensorboard:" in text
    assert "dir=" in text


def test_heavy_libraries_are_not_loaded_unless_their_output_is_used():
    program = (
        "import sys, msmon.commands.daemon.command; "
        "print([name for name in ('tensorboard', 'xlsxwriter', 'rich') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_an_output_that_hangs_does_not_keep_it_from_ending(daemons):
    program = (
        "import asyncio, sys, time\n"
        "from pathlib import Path\n"
        "from msmon.daemon.outputs.outputs import Outputs, OutputsConfig\n"
        "from msmon.daemon.service import DaemonSettings, Surface, serve\n"
        "class Hanging(Outputs):\n"
        "    def __init__(self, on_commit): super().__init__(OutputsConfig(), on_commit)\n"
        "    def close(self, timeout_s): time.sleep(60)\n"
        "settings = DaemonSettings(*map(Path, sys.argv[1:]))\n"
        "asyncio.run(serve(settings, Hanging, Surface(lambda line: print(line, flush=True))))\n"
    )
    keys = daemons.runtime.parent / "keys"
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(daemons.runtime), str(keys), str(keys)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    daemons.running.append(process)
    assert "ready" in process.stdout.readline()
    process.terminate()
    process.communicate(timeout=2 * DEADLINE_S)
    assert process.returncode == 1
