"""A client talks to root's, the system daemon's or its own daemon, and to nobody else's."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from msmon.bus.client import Client
from msmon.bus.endpoints import Endpoint, local_endpoint
from msmon.bus.keys import KeyPair, key_file_text
from msmon.bus.sockets import connect
from msmon.bus.trust import Untrusted, peer_uid
from msmon.errors import BusError, HandshakeRefused

VICTIM, ATTACKER = 1_000_000 + 2 * os.getpid(), 1_000_001 + 2 * os.getpid()
"""Users of nobody else, so that tests may run side by side."""
OTHER_USER = Path(__file__).parents[1] / "fixtures" / "other_user.py"

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become other users")


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that everybody may walk through and only we may write in."""
    directory = Path(tempfile.mkdtemp(prefix="msmon-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def tmp_of_victim() -> Iterator[Path]:
    """The name in /tmp at which the victim's clients look, free before and after."""
    path = Path(f"/tmp/msmon-{VICTIM}")
    yield path
    if path.is_symlink():
        path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)


class Listener:
    """A daemon's directory with its key and a socket at which something listens."""

    def __init__(self, directory: Path, mode: int = 0o755) -> None:
        self.directory = directory
        directory.mkdir(exist_ok=True)
        directory.chmod(mode)
        text = key_file_text({"public-key": KeyPair.generate().public.decode()})
        (directory / "daemon.pub").write_text(text)
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.bind(str(directory / "daemon.sock"))
        self.socket.listen()

    def give_to(self, uid: int) -> Listener:
        for path in (self.directory, *self.directory.iterdir()):
            os.chown(path, uid, uid)
        return self

    def close(self) -> None:
        self.socket.close()


@pytest.fixture
def listener() -> Iterator:
    made: list[Listener] = []

    def make(*arguments) -> Listener:
        made.append(Listener(*arguments))
        return made[-1]

    yield make
    for one in made:
        one.close()


def found_by_victim(system: Path, **environ: str) -> str:
    """Return what a client of the victim finds where ``system`` stands for /run/msmon."""
    expression = (
        "setattr(sys.modules['msmon.bus.endpoints'], 'SYSTEM_DIRECTORY', "
        f"__import__('pathlib').Path({str(system)!r})) or endpoint()"
    )
    names = ("MSMON", "XDG_")
    kept = {name: text for name, text in os.environ.items() if not name.startswith(names)}
    done = subprocess.run(
        [sys.executable, str(OTHER_USER), str(VICTIM), expression],
        env={**kept, **environ},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout.strip()


# --- which directory ------------------------------------------------------------------------


@root_only
def test_a_link_in_tmp_to_a_directory_of_root_is_passed_over(place, listener, tmp_of_victim):
    listener(place / "trap", 0o1777)
    tmp_of_victim.symlink_to(place / "trap")
    os.chown(tmp_of_victim, ATTACKER, ATTACKER, follow_symlinks=False)
    system = listener(place / "system")
    found = found_by_victim(system.directory)
    assert f"ipc://{system.directory}/daemon.sock" in found
    assert f"{tmp_of_victim} is a link" in found


@root_only
@pytest.mark.parametrize("mode", [0o700, 0o755, 0o777])
def test_a_directory_of_another_user_in_tmp_is_passed_over(place, listener, tmp_of_victim, mode):
    tmp_of_victim.mkdir()
    os.chown(tmp_of_victim, ATTACKER, ATTACKER)
    tmp_of_victim.chmod(mode)
    system = listener(place / "system")
    found = found_by_victim(system.directory)
    assert f"ipc://{system.directory}/daemon.sock" in found
    assert f"{tmp_of_victim} belongs to uid {ATTACKER}" in found


@root_only
def test_an_empty_directory_of_ones_own_does_not_hide_the_system_daemon(
    place, listener, tmp_of_victim
):
    tmp_of_victim.mkdir(mode=0o700)
    os.chown(tmp_of_victim, VICTIM, VICTIM)
    system = listener(place / "system")
    found = found_by_victim(system.directory)
    assert f"ipc://{system.directory}/daemon.sock" in found
    assert "passed_over=()" in found


@root_only
@pytest.mark.parametrize("mode", [0o700, 0o755])
def test_the_runtime_directory_of_another_user_is_passed_over(place, listener, mode):
    """As after ``su``: XDG_RUNTIME_DIR is still the former user's."""
    theirs = place / "theirs"
    theirs.mkdir()
    listener(theirs / "msmon").give_to(ATTACKER)
    os.chown(theirs, ATTACKER, ATTACKER)
    theirs.chmod(mode)
    system = listener(place / "system")
    found = found_by_victim(system.directory, XDG_RUNTIME_DIR=str(theirs))
    assert f"ipc://{system.directory}/daemon.sock" in found
    assert f"{theirs / 'msmon'}" in found


@root_only
def test_without_another_daemon_the_error_names_what_was_passed_over(place, tmp_of_victim):
    tmp_of_victim.mkdir()
    os.chown(tmp_of_victim, ATTACKER, ATTACKER)
    found = found_by_victim(place / "nothing here")
    assert found.startswith("DaemonUnreachable")
    assert f"{tmp_of_victim} belongs to uid {ATTACKER}" in found


@root_only
def test_the_system_directory_may_belong_to_the_daemons_own_user(place, listener):
    system = listener(place / "system").give_to(ATTACKER)
    found = found_by_victim(system.directory)
    assert f"ipc://{system.directory}/daemon.sock" in found
    assert str(ATTACKER) in found  # among those as whom the daemon may run


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o1777])
def test_a_named_directory_in_which_others_may_write_is_refused(place, listener, mode):
    directory = listener(place / "run", mode).directory
    with pytest.raises(Untrusted, match="others may write in"):
        local_endpoint({"MSMON_RUNTIME_DIR": str(directory)})


def test_a_named_link_is_refused(place, listener):
    (place / "link").symlink_to(listener(place / "run").directory)
    with pytest.raises(Untrusted, match="is a link"):
        local_endpoint({"MSMON_RUNTIME_DIR": str(place / "link")})


@pytest.mark.parametrize("name", ["daemon.sock", "daemon.pub"])
def test_a_socket_or_key_that_is_a_link_is_not_followed(place, listener, name):
    directory = listener(place / "run").directory
    (directory / name).rename(place / name)
    (directory / name).symlink_to(place / name)
    with pytest.raises(BusError):
        local_endpoint({"MSMON_RUNTIME_DIR": str(directory)})


def test_a_pipe_in_place_of_the_key_does_not_hang(place, listener):
    directory = listener(place / "run").directory
    (directory / "daemon.pub").unlink()
    os.mkfifo(directory / "daemon.pub")
    with pytest.raises(BusError, match="no regular file"):
        local_endpoint({"MSMON_RUNTIME_DIR": str(directory)})


# --- who is at the other end ----------------------------------------------------------------


LISTEN_AS = """
import os, socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[2])
os.chmod(sys.argv[2], 0o666)
os.setgid(int(sys.argv[1])); os.setuid(int(sys.argv[1]))
listener.listen()
print("listening", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def strangers_socket(place) -> Iterator[Path]:
    path = place / "daemon.sock"
    process = subprocess.Popen(
        [sys.executable, "-c", LISTEN_AS, str(ATTACKER), str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout.readline() == b"listening\n"
    yield path
    process.communicate()


@root_only
@pytest.mark.parametrize("secured", [True, False])
def test_a_stranger_at_the_socket_is_refused_before_anything_is_sent(strangers_socket, secured):
    pair = KeyPair.generate() if secured else None
    public = pair.public if pair else None
    endpoint = Endpoint(f"ipc://{strangers_socket}", public, pair, frozenset({0, VICTIM}))
    with pytest.raises(HandshakeRefused, match=f"belongs to uid {ATTACKER}"), Client(endpoint, 5.0):
        pass


def test_the_user_at_the_other_end_is_the_one_who_listens(place):
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
        listener.bind(str(place / "socket"))
        listener.listen()
        client.connect(str(place / "socket"))
        assert peer_uid(client.fileno()) == os.geteuid()


def test_what_is_no_connected_unix_socket_has_no_user():
    with socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_connection(server.getsockname()) as client:
            assert peer_uid(client.fileno()) is None
        assert peer_uid(server.fileno()) is None
    with open(os.devnull) as file:
        assert peer_uid(file.fileno()) is None
    assert peer_uid(9999) is None


def test_a_connection_that_is_over_before_it_could_be_asked_accuses_nobody(place, listener):
    there = listener(place / "run")
    url = f"ipc://{there.directory / 'daemon.sock'}"
    context = zmq.Context()
    dealer, watch = connect(context, Endpoint(url, None, None, frozenset({os.geteuid()})))
    for _ in range(2):  # once the second one is there, the first one is over at both ends
        there.socket.accept()[0].close()
    told = [event.reason for event in watch.events()]
    watch.close()
    dealer.close()
    context.term()
    assert not [reason for reason in told if "belongs to" in reason]


def test_the_daemons_own_user_is_accepted_over_the_same_check(daemon):
    daemon.start()
    endpoint = daemon.endpoint()
    assert os.geteuid() in endpoint.daemon_uids
    with Client(endpoint) as client:
        assert client.daemon is not None


def test_a_look_at_a_number_that_is_a_file_of_the_job_by_now_keeps_nothing_of_it(tmp_path):
    with (tmp_path / "checkpoint").open("w") as file:
        before = os.listdir("/proc/self/fd")
        assert peer_uid(file.fileno()) is None
        assert os.listdir("/proc/self/fd") == before
        file.write("still open")
