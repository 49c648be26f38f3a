"""Every way in which a remote connection can fail has its own words, in time, and ends.

Run as a user does, as a process: a command that hangs at its exit fails here too.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ports import free_port

from msmon.bus.keys import KeyPair, key_file_text
from msmon.commands.main import main

pytestmark = pytest.mark.xdist_group("handshakes")

TIMEOUT_S = 3.0
EXIT_LIMIT_S = TIMEOUT_S + 5.0
"""The time-out, the start of an interpreter on a busy machine, and no hang."""


class Remote:
    """A daemon that listens on TCP, and the key directory of its client ``olga``."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.client = directory / "olga"
        self.server = directory / "keys"
        self.port = free_port()
        self.environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith("MSMON")},
            "MSMON_RUNTIME_DIR": str(directory / "run"),
            "MSMON_KEYS_DIR": str(self.server),
        }
        self._daemon: subprocess.Popen[str] | None = None
        self.keys("new", "olga", "--role", "operator", "--out", str(self.client))

    def keys(self, *arguments: str) -> None:
        assert main(["keys", "--keys", str(self.server), *arguments]) == 0

    def start(self, *options: str) -> None:
        self.stop()
        self._daemon = subprocess.Popen(
            [
                *(sys.executable, "-W", "error", "-m", "msmon.commands.daemon"),
                *("--listen", f"127.0.0.1:{self.port}", "--heartbeat-s", "0.1", *options),
            ],
            env=self.environ,
            stderr=subprocess.PIPE,
            text=True,
        )
        while "ready" not in (line := self._daemon.stderr.readline()):
            assert line, "the daemon has ended"

    def stop(self) -> None:
        if self._daemon is not None:
            self._daemon.terminate()
            self._daemon.communicate()
            self._daemon = None

    def status(self, *options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [
                *(sys.executable, "-W", "error", "-m", "msmon.commands.main", "status"),
                *("--host", "127.0.0.1", "--port", str(self.port), "--keys", str(self.client)),
                *("--timeout", str(TIMEOUT_S), *options),
            ],
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=EXIT_LIMIT_S,
        )


@pytest.fixture(scope="module")
def remote() -> Iterator[Remote]:
    directory = Path(tempfile.mkdtemp(prefix="msmon-"))
    made = Remote(directory)
    made.start()
    yield made
    made.stop()
    shutil.rmtree(directory)


@pytest.fixture
def client(remote) -> Iterator[Path]:
    """The client's key directory, restored afterwards."""
    kept = remote.directory / "kept"
    shutil.copytree(remote.client, kept)
    yield remote.client
    shutil.rmtree(remote.client)
    kept.rename(remote.client)


def public_text() -> str:
    return key_file_text({"public-key": KeyPair.generate().public.decode()})


def damage_files(client: Path) -> dict[str, Callable[[], object]]:
    secret, server = client / "client.key_secret", client / "server.key"
    return {
        "client.key_secret is missing": secret.unlink,
        "client.key_secret is empty": lambda: secret.write_text(""),
        "has 39 characters instead of 40": lambda: server.write_text(
            public_text().replace('"\n', "")[:-1] + '"\n'
        ),
        "has no public-key": lambda: server.write_text(public_text()[:20]),
        "is open to other users": lambda: secret.chmod(0o644),
        "is not its key": lambda: server.write_text(public_text()),
    }


def test_it_works(remote):
    done = remote.status("--json")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("expected", damage_files(Path()))
def test_a_key_that_does_not_fit(remote, client, expected):
    damage_files(client)[expected]()
    done = remote.status()
    assert (done.returncode, done.stdout) == (1, "")
    assert expected in done.stderr
    assert len(done.stderr.splitlines()) <= 2


def test_a_key_that_is_not_allowed(remote):
    (remote.server / "clients" / "olga.key").rename(remote.directory / "olga.key")
    remote.start()
    done = remote.status()
    remote.keys("allow", str(remote.directory / "olga.key"))
    assert done.returncode == 1
    assert "does not accept this user or key" in done.stderr


def test_security_on_one_side_only(remote):
    done = remote.status("--insecure")
    assert done.returncode == 1
    assert "only takes secured connections" in done.stderr
    remote.start("--insecure")
    done = remote.status()
    remote.start()
    assert done.returncode == 1
    assert "runs with --insecure" in done.stderr


def test_no_daemon(remote):
    remote.stop()
    done = remote.status()
    remote.start()
    assert done.returncode == 1
    assert "no daemon listens" in done.stderr
