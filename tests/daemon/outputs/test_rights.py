"""Exports below a root daemon: files are touched with the rights of the user whose data they are.

The user of these tests has a uid that no password file knows, as one in a container.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from msmon.daemon.access.owners import Owner, owner_directory
from msmon.daemon.outputs.delivery import BatchDelivery, Closing
from msmon.daemon.outputs.outputs import Outputs, OutputsConfig
from msmon.errors import MsmonError, SinkError, UsageError
from msmon.records.batch import Batch
from msmon.sessions import SessionEnd, SessionInfo

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can start processes with the rights of others"
)

ALICE = Owner("uid 23456", 23456)
BOB = Owner("uid 23457", 23457)
FORMATS = ["DB", "Jsonl"]


class Daemon:
    """The outputs of one daemon; ``kill`` ends them as SIGKILL of the daemon would."""

    def __init__(self, root: Path, state: Path, **options: float) -> None:
        self.safe: dict[str, int] = {}
        self._changed = threading.Condition()
        config = OutputsConfig((), (root,), state, **options)
        self.outputs = Outputs(config, self._commit)

    def _commit(self, session_id: str, seq: int) -> None:
        with self._changed:
            self.safe[session_id] = seq
            self._changed.notify_all()

    def wait(self, seq: int, session_id: str = "session-0", limit_s: float = 20) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.safe.get(session_id, 0) >= seq, limit_s)

    def open(self, session: SessionInfo, owner: Owner = ALICE) -> tuple[str, ...] | MsmonError:
        return self._answer(lambda done: self.outputs.open_session(session, owner, done))

    def check(self, path: Path, owner: Owner = ALICE, anywhere: bool = False) -> str | MsmonError:
        return self._answer(
            lambda done: self.outputs.check_export(str(path), "DB", owner, anywhere, done)
        )

    def _answer(self, ask: Callable[[Callable[[Any], None]], None]) -> Any:
        answers: list[Any] = []
        answered = threading.Event()
        ask(lambda item: (answers.append(item), answered.set()))
        assert answered.wait(20)
        return answers[0]

    def put(self, batch: Batch, seq: int, session_id: str = "session-0") -> None:
        payload = tuple(batch.to_frames())
        self.outputs.put(BatchDelivery(session_id, seq, int(batch.kind), len(batch), payload))

    def end(self, seq: int, session_id: str = "session-0") -> None:
        self.outputs.put(Closing(session_id, seq, SessionEnd(9, "stop")))

    def processes(self) -> list[psutil.Process]:
        return [item for item in psutil.Process().children() if is_output(item)]

    def problem(self) -> str:
        return "; ".join(filter(None, (row.problem for row in self.outputs.status())))


def is_output(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):  # a zombie is none
        return "msmon.daemon.outputs.child" in " ".join(process.cmdline())
    return False


@pytest.fixture
def place() -> Iterator[Path]:
    """An export root of root's, with a directory of alice's and one of bob's in it.

    Not below ``tmp_path``: pytest closes that to other users whenever a run begins.
    """
    open_to_all = Path(tempfile.mkdtemp(prefix="msmon-rights-"))
    open_to_all.chmod(0o755)
    root = open_to_all / "exports"
    root.mkdir(0o755)
    for name, owner in (("alice", ALICE), ("bob", BOB)):
        (root / name).mkdir(0o750)
        os.chown(root / name, owner.uid, owner.uid)
    yield root
    shutil.rmtree(open_to_all)


@pytest.fixture
def daemon(place: Path, tmp_path: Path) -> Iterator[Daemon]:
    daemon = Daemon(place, tmp_path / "state")
    yield daemon
    daemon.outputs.close(5)
    assert not daemon.processes()


def rows(path: str | Path) -> int:
    if str(path).endswith(".jsonl"):
        return sum('"Kernel"' in line for line in Path(path).read_text().splitlines())
    connection = sqlite3.connect(path)
    ((count,),) = connection.execute("SELECT count(*) FROM TASK").fetchall()
    connection.close()
    return int(count)


@pytest.mark.parametrize("export_type", FORMATS)
def test_files_belong_to_the_user_and_the_process_has_no_other_rights(
    daemon: Daemon, place: Path, kernels: Any, session: Any, export_type: str
) -> None:
    opened = daemon.open(session(place / "alice" / "run", export_type=export_type))
    assert isinstance(opened, tuple)
    daemon.put(kernels(50), 2)
    daemon.wait(2)
    (process,) = daemon.processes()
    status = Path(f"/proc/{process.pid}/status").read_text()
    assert set(process.uids()) == {ALICE.uid}
    assert "NoNewPrivs:\t1" in status
    assert "Groups:\t \n" in status
    assert int(next(x for x in status.splitlines() if x.startswith("CapPrm")).split()[1], 16) == 0
    inherited = {os.readlink(f"/proc/{process.pid}/fd/{number}") for number in range(3)}
    assert inherited == {"/dev/null"}
    for path in (place / "alice" / "run", Path(opened[0])):
        assert path.stat().st_uid == ALICE.uid
        assert not stat.S_IMODE(path.stat().st_mode) & 0o027
    daemon.end(3)
    daemon.wait(3)
    assert rows(opened[0]) == 50


def test_a_user_can_not_export_where_only_others_may_write(daemon: Daemon, place: Path) -> None:
    refused = daemon.check(place / "bob" / "run")
    assert isinstance(refused, SinkError)
    assert "can't be written" in refused.message or "Permission denied" in refused.message
    nowhere = daemon.check(Path("/root/x"))
    assert isinstance(nowhere, UsageError)
    wanted = f"choose a directory below {place}; for this user there is {place}/{ALICE.uid}"
    assert nowhere.next_step == wanted
    assert isinstance(daemon.check(Path("/root/x"), anywhere=True), MsmonError)
    (place / "alice" / "link").symlink_to("/root")
    assert isinstance(daemon.check(place / "alice" / "link" / "x"), MsmonError)
    assert daemon.check(place / "alice" / "run") == str(place / "alice" / "run")


def test_root_makes_a_personal_directory_below_a_root_that_only_it_can_write(
    daemon: Daemon, place: Path
) -> None:
    carol = Owner("uid 23458", 23458)
    assert daemon.check(place / "23458" / "a" / "b", carol) == str(place / "23458" / "a" / "b")
    made = (place / "23458").stat()
    assert (made.st_uid, stat.S_IMODE(made.st_mode)) == (23458, 0o750)
    assert not (place / "23458" / "a").exists()  # made with the first file, by the user
    assert isinstance(daemon.check(place / "elsewhere", carol), SinkError)
    assert not (place / "elsewhere").exists()
    place.chmod(0o777)  # now anybody could put a link there meanwhile
    daemon.check(place / "23459", Owner("uid 23459", 23459))
    assert not (place / "23459").exists()


def test_the_data_of_a_tcp_key_goes_only_where_nobody_but_the_daemon_may_write(
    daemon: Daemon, place: Path, session: Any
) -> None:
    key = Owner("key olga")
    shared = place / "alice" / "shared"
    shared.mkdir()  # root's, but in a directory that alice can rename
    for directory in (place / "alice" / "run", shared, shared / "run"):
        opened = daemon.open(session(directory, session_id=f"session-{directory}"), key)
        for answer in (daemon.check(directory, key), opened):
            assert isinstance(answer, SinkError)
            assert "alice belongs to uid 23456" in answer.message
    outside = place.parent / "outside"
    outside.mkdir()
    opened = daemon.open(session(outside), key)
    for answer in (daemon.check(outside, key, anywhere=True), opened):
        assert isinstance(answer, UsageError)
    assert daemon.check(place / "olga" / "run", key) == str(place / "olga" / "run")
    opened = daemon.open(session(place / "olga" / "run", session_id="session-1"), key)
    assert isinstance(opened, tuple)
    assert Path(opened[0]).parent == place / "olga" / "run"


def test_a_place_that_was_opened_to_others_is_refused_to_a_tcp_key_at_the_next_opening(
    daemon: Daemon,
    place: Path,
    session: Any,
    caplog: pytest.LogCaptureFixture,
    wait_for: Callable[..., Any],
) -> None:
    key = Owner("key olga")
    assert daemon.check(place / "olga", key) == str(place / "olga")
    place.chmod(0o777)
    refused = daemon.open(session(place / "olga"), key)
    assert isinstance(refused, SinkError)
    assert f"{place} can be changed by other users" in refused.message
    wait_for(lambda: caplog.records, "a line in the log, which is written after the answer")
    assert [record.owner for record in caplog.records] == [key.name]
    assert not (place / "olga").exists()


def test_a_user_whom_only_the_kernel_knows_writes_with_the_group_of_the_process(
    daemon: Daemon, place: Path, session: Any
) -> None:
    container = Owner("uid 23458", 23458, 23499)
    assert isinstance(daemon.check(place / "23458" / "run", container), str)
    opened = daemon.open(session(place / "23458" / "run"), container)
    assert isinstance(opened, tuple)
    for made in (place / "23458", Path(opened[0])):
        assert (made.stat().st_uid, made.stat().st_gid) == (23458, 23499)


@pytest.mark.parametrize("export_type", FORMATS)
@pytest.mark.parametrize("planted", ["link", "hard link", "fifo", "device", "directory"])
def test_what_was_planted_at_the_name_of_a_file_harms_nobody(
    place: Path, tmp_path: Path, kernels: Any, session: Any, export_type: str, planted: str
) -> None:
    """The daemon is killed; the user puts something else at the file's name; it comes back."""
    precious = place.parent / "precious"
    precious.write_text("x" * 100_000)
    exported = session(place / "alice", export_type=export_type)
    first = Daemon(place, tmp_path / "state")
    (path,) = first.open(exported)
    first.put(kernels(50), 2)
    first.wait(2)
    first.outputs.close(5)
    Path(path).unlink()
    if planted == "link":
        Path(path).symlink_to(precious)
    elif planted == "hard link":
        os.link(precious, path)
    elif planted == "fifo":
        os.mkfifo(path)
    elif planted == "device":
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 5))
    else:
        Path(path).mkdir()
    second = Daemon(place, tmp_path / "state")
    assert isinstance(second.open(exported), tuple)
    second.put(kernels(50), 3)
    second.end(4)
    second.wait(4)
    second.outputs.close(5)
    assert precious.read_text() == "x" * 100_000
    assert (precious.stat().st_uid, precious.stat().st_size) == (0, 100_000)
    new = [item for item in (place / "alice").iterdir() if str(item) != path and item.is_file()]
    assert sum(rows(item) for item in new if item.suffix in (".db", ".jsonl")) == 50


@pytest.mark.parametrize("export_type", FORMATS)
def test_a_restarted_daemon_goes_on_from_its_state_directory_and_doubles_nothing(
    place: Path, tmp_path: Path, kernels: Any, session: Any, export_type: str
) -> None:
    exported = session(place / "alice", export_type=export_type)
    first = Daemon(place, tmp_path / "state")
    first.open(exported)
    first.put(kernels(50), 2)
    first.wait(2)
    for process in first.processes():
        process.kill()
    first.put(kernels(70), 3)
    first.outputs.close(0)  # it had no time for the last batch
    second = Daemon(place, tmp_path / "state")
    second.open(exported)
    second.put(kernels(50), 2)  # the agent did not hear that it was safe
    second.put(kernels(70), 3)
    second.end(4)
    second.wait(4)
    second.outputs.forget("session-0")
    second.outputs.close(5)
    third = Daemon(place, tmp_path / "state")
    third.open(exported)
    third.put(kernels(70), 3)  # it was suspended for long, and still has not heard it
    third.end(4)
    third.wait(4)
    third.outputs.close(5)
    files = [item for item in (place / "alice").iterdir() if item.suffix in (".db", ".jsonl")]
    assert sum(map(rows, files)) == 120
    kept = owner_directory(tmp_path / "state", ALICE.name)
    assert stat.S_IMODE(kept.stat().st_mode) == 0o700
    assert [item.stat().st_size < 1024 for item in kept.iterdir()] == [True]
    hidden = [item.name for item in (place / "alice").iterdir() if item.name.startswith(".")]
    assert hidden == []


VIEW = """
CREATE VIEW {name} AS WITH RECURSIVE endless(x) AS
    (SELECT 1 UNION ALL SELECT x + 1 FROM endless) SELECT x AS name, x AS value FROM endless
"""


@pytest.mark.parametrize(
    "planted",
    [
        "DROP TABLE MSMON_STATE; " + VIEW.format(name="MSMON_STATE"),
        "CREATE TRIGGER t AFTER INSERT ON STRING_IDS BEGIN DELETE FROM TASK; END",
        "CREATE TABLE g (a, b GENERATED ALWAYS AS (a + 1))",
    ],
)
def test_a_database_that_was_changed_to_run_something_is_left_alone(
    place: Path, tmp_path: Path, kernels: Any, session: Any, planted: str
) -> None:
    exported = session(place / "alice")
    first = Daemon(place, tmp_path / "state")
    (path,) = first.open(exported)
    first.put(kernels(50), 2)
    first.wait(2)
    first.outputs.close(5)
    connection = sqlite3.connect(path)
    connection.executescript(planted)
    connection.close()
    second = Daemon(place, tmp_path / "state")
    opened = second.open(exported)
    assert isinstance(opened, tuple)
    assert opened != (path,)
    second.put(kernels(30), 3)
    second.wait(3)
    second.outputs.close(5)
    assert rows(opened[0]) == 30


@pytest.mark.parametrize("export_type", FORMATS)
def test_a_directory_that_became_a_link_leads_nowhere(
    daemon: Daemon, place: Path, kernels: Any, session: Any, export_type: str
) -> None:
    run = place / "alice" / "run"
    settings = {"export_type": export_type, "jsonl_rotate_lines": 100}
    assert isinstance(daemon.open(session(run, **settings)), tuple)
    run.rename(place / "alice" / "former")
    run.symlink_to("/etc")
    before = set(os.listdir("/etc"))
    daemon.put(kernels(500), 2)
    again = session(run, rank=1, session_id="session-1", **settings)
    assert isinstance(daemon.open(again), SinkError)
    assert set(os.listdir("/etc")) == before


def test_a_process_that_does_not_answer_holds_up_its_own_user_only(
    daemon: Daemon, place: Path, kernels: Any, session: Any, wait_for: Callable[..., Any]
) -> None:
    daemon.open(session(place / "alice"))
    (hanging,) = daemon.processes()
    hanging.suspend()
    daemon.put(kernels(50), 2)
    other = session(place / "bob", rank=1)
    assert isinstance(daemon.open(other, BOB), tuple)
    daemon.put(kernels(50), 2, "session-1")
    daemon.end(3, "session-1")
    daemon.wait(3, "session-1")
    assert daemon.safe.get("session-0", 0) < 2
    daemon.outputs.close(0.5)
    assert not hanging.is_running() or hanging.status() == psutil.STATUS_ZOMBIE


def test_a_user_s_process_is_ended_when_nothing_is_open_and_serves_the_next_session(
    place: Path,
    tmp_path: Path,
    kernels: Any,
    session: Any,
    wait_for: Callable[..., Any],
) -> None:
    daemon = Daemon(place, tmp_path / "state", idle_s=0.3)
    daemon.open(session(place / "alice"))
    assert len(daemon.processes()) == 1
    daemon.end(2)
    daemon.wait(2)
    wait_for(lambda: not daemon.processes(), "the process is idle and ends")
    answer = daemon.open(session(place / "alice", session_id="session-9"))
    assert isinstance(answer, tuple)
    for process in daemon.processes():
        process.kill()
        process.wait(5)
    assert isinstance(daemon.open(session(place / "alice", session_id="session-8")), tuple)
    daemon.outputs.close(5)


def test_progress_of_one_owner_is_not_known_to_another(
    place: Path, tmp_path: Path, kernels: Any, session: Any
) -> None:
    """Who learns a session's id and opens it as its own gets a file of its own."""
    first = Daemon(place, tmp_path / "state")
    (path,) = first.open(session(place / "alice"))
    first.put(kernels(50), 2)
    first.wait(2)
    first.outputs.close(5)
    second = Daemon(place, tmp_path / "state")
    refused = second.open(session(place / "alice"), BOB)
    assert isinstance(refused, SinkError)
    second.outputs.close(5)
    assert rows(path) == 50
    names = [json.loads(item.read_bytes())["path"] for item in state_files(tmp_path / "state")]
    assert names == [path]


def state_files(state: Path) -> list[Path]:
    return sorted(state.glob("owners/*/*.progress"))
