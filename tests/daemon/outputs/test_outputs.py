"""The facade for the broker: which outputs a session goes to, and what is acknowledged."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from msmon.daemon.access.owners import Owner
from msmon.daemon.outputs.delivery import BatchDelivery, Closing, WindowDelivery
from msmon.daemon.outputs.output import Output
from msmon.daemon.outputs.outputs import Outputs, OutputsConfig
from msmon.errors import MsmonError, SinkError, UsageError
from msmon.records.batch import Batch
from msmon.records.window_header import WindowHeader
from msmon.sessions import SessionEnd
from msmon.sinks.catalog import describe_sinks, parse_sink_option, sink_class
from msmon.sinks.exports import create_file, resolve_export
from msmon.sinks.jsonl.sink import JsonlSink
from msmon.sinks.log import LogSink
from msmon.sinks.sqlite.file import identity_at, open_for_writing

END = SessionEnd(9, "stop")
OWN = Owner(f"uid {os.geteuid()}", os.geteuid())


class Broker:
    """What the broker does with outputs: collects acknowledgements and answers."""

    def __init__(self, roots: list[Path], *outputs: Output) -> None:
        self.acknowledged: dict[str, int] = {}
        self._changed = threading.Condition()
        self.outputs = Outputs(OutputsConfig(outputs, tuple(roots)), self._commit)

    def _commit(self, session_id: str, seq: int) -> None:
        with self._changed:
            self.acknowledged[session_id] = seq
            self._changed.notify_all()

    def wait(self, session_id: str, seq: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.acknowledged.get(session_id, 0) >= seq, 10)

    def open(self, session: Any) -> tuple[str, ...] | MsmonError:
        answers: list[tuple[str, ...] | MsmonError] = []
        answered = threading.Event()
        self.outputs.open_session(session, OWN, lambda item: (answers.append(item), answered.set()))
        assert answered.wait(10)
        return answers[0]

    def put(self, batch: Batch, seq: int) -> None:
        payload = tuple(batch.to_frames())
        kind = int(batch.kind)
        self.outputs.put(BatchDelivery("session-0", seq, kind, len(batch), payload))

    def end(self, seq: int) -> None:
        self.outputs.put(Closing("session-0", seq, END))

    def check(self, path: Path | str, owner: Owner, anywhere: bool) -> str | MsmonError:
        answers: list[str | MsmonError] = []
        answered = threading.Event()
        self.outputs.check_export(
            str(path), "DB", owner, anywhere, lambda item: (answers.append(item), answered.set())
        )
        assert answered.wait(20)
        return answers[0]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker([tmp_path / "root"], Output(LogSink, {"top": 3}))
    yield broker
    broker.outputs.close(5)


def test_an_exported_session_is_acknowledged_when_it_is_in_the_file(
    broker: Broker, kernels: Any, session: Any, tmp_path: Path
) -> None:
    answer = broker.open(session(tmp_path))
    assert isinstance(answer, tuple)
    (path,) = answer
    batch = kernels(50)
    broker.put(batch, 2)
    broker.wait("session-0", 2)
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT count(*) FROM TASK").fetchone() == (50,)
    connection.close()
    broker.end(3)
    broker.wait("session-0", 3)
    assert broker.outputs.files("session-0") == (path,)
    assert broker.outputs.drops("session-0") == {}


@pytest.mark.parametrize(
    ("records", "kept", "told"), [(0, -1, 0), (250, -1, 3), (250, 2, 2), (3000, -1, 1)]
)
def test_the_files_told_are_those_that_exist(
    broker: Broker, kernels: Any, session: Any, tmp_path: Path, records: int, kept: int, told: int
) -> None:
    rotated = session(
        tmp_path, export_type="Jsonl", jsonl_rotate_lines=100, jsonl_rotate_files=kept
    )
    assert len(broker.open(rotated)) == 1
    batch = kernels(records)
    broker.put(batch, 2)
    broker.end(3)
    broker.wait("session-0", 3)
    files = broker.outputs.files("session-0")
    assert len(files) == told
    exist = sorted(tmp_path.glob("*.jsonl"))
    if "*" in "".join(files):  # more than can be named
        assert sorted(tmp_path.glob(Path(files[0]).name)) == exist
    else:
        assert sorted(files) == [str(path) for path in exist]


def test_a_window_is_acknowledged_when_the_output_of_windows_has_it(
    broker: Broker, session: Any, tmp_path: Path
) -> None:
    assert broker.open(session(tmp_path, log_file="")) == ()
    header = WindowHeader(index=0, start_ns=0, end_ns=10**9)
    broker.outputs.put(WindowDelivery("session-0", 2, header, (b"", b"", b"")))
    broker.wait("session-0", 2)


def test_an_output_of_the_daemon_takes_every_session(
    kernels: Any, session: Any, tmp_path: Path
) -> None:
    broker = Broker([], Output(JsonlSink, {"path": str(tmp_path / "all")}))
    assert broker.outputs.wants_records
    (path,) = broker.open(session(tmp_path, log_file=""))
    batch = kernels(10)
    broker.put(batch, 2)
    broker.wait("session-0", 2)
    assert len(Path(path).read_text().splitlines()) == 10
    broker.outputs.close(5)


def test_an_export_that_can_not_be_opened_is_the_answer(
    broker: Broker, session: Any, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    answer = broker.open(session(tmp_path / "file" / "below"))
    assert isinstance(answer, SinkError)
    broker.end(2)
    broker.wait("session-0", 2)


def test_an_export_is_checked_in_the_process_that_will_write_it(
    broker: Broker, tmp_path: Path
) -> None:
    assert broker.check(tmp_path / "a" / ".." / "out", OWN, True) == str(tmp_path / "out")
    assert not (tmp_path / "out").exists()  # it is made with the first file
    refused = broker.check(tmp_path / "out", OWN, False)
    assert isinstance(refused, UsageError)
    assert "may not export" in refused.message
    (tmp_path / "root" / "mine").mkdir(parents=True)
    mine = tmp_path / "root" / "mine"
    assert broker.check(mine, OWN, False) == str(mine)
    with pytest.raises(UsageError, match="not an absolute path"):
        broker.check("relative", OWN, True)


def test_other_users_may_only_export_below_a_root(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    assert resolve_export(str(root / "x"), [root]) == root / "x"
    (root / "link").symlink_to(tmp_path)
    for path in (tmp_path / "y", root / ".." / "y", root / "link" / "y", tmp_path / "root2"):
        with pytest.raises(UsageError, match="may not export"):
            resolve_export(str(path), [root])
    with pytest.raises(UsageError, match="--export-root"):
        resolve_export(str(root), [])
    assert not (tmp_path / "y").exists()


def test_paths_that_can_not_be_a_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SinkError, match="is not a directory"):
        resolve_export(str(tmp_path / "file"), None)
    with pytest.raises(UsageError, match="not an absolute path"):
        resolve_export("relative", None)
    with pytest.raises(UsageError, match="not an absolute path"):
        resolve_export("/tmp/\0", None)
    with pytest.raises(SinkError, match="can't use"):
        resolve_export(str(tmp_path / ("n" * 300)), None)
    odd = tmp_path / "空 格;$(x)\n"
    assert resolve_export(str(odd), None) == odd


def test_no_file_goes_where_a_directory_was_replaced_after_the_check(tmp_path: Path) -> None:
    victim, allowed = tmp_path / "victim", tmp_path / "root" / "mine"
    victim.mkdir()
    checked = resolve_export(str(allowed / "out"), None)
    assert create_file(checked, "a").read_text() == ""
    allowed.rename(tmp_path / "former")
    allowed.symlink_to(victim)
    with pytest.raises(SinkError, match=f"{allowed} has been replaced"):
        create_file(checked, "b")
    assert not list(victim.iterdir())


def test_a_link_in_the_place_of_a_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "name").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError):
        create_file(tmp_path, "name")
    assert not (tmp_path / "elsewhere").exists()


def test_sqlite_does_not_write_through_a_directory_that_became_a_link(tmp_path: Path) -> None:
    victim, out = tmp_path / "victim", tmp_path / "out"
    victim.mkdir()
    path = create_file(out, "x.db")
    identity = identity_at(path)
    create_file(victim, "x.db")
    out.rename(tmp_path / "former")
    out.symlink_to(victim)
    with pytest.raises(SinkError, match="moved or replaced"):
        open_for_writing(path, identity)
    assert (victim / "x.db").stat().st_size == 0
    assert [file.name for file in victim.iterdir()] == ["x.db"]


def test_without_proc_sqlite_is_refused_and_the_remedy_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_proc(path: str) -> list[str]:
        raise FileNotFoundError(path)

    created = create_file(tmp_path, "x.db")
    identity = identity_at(created)
    monkeypatch.setattr("msmon.sinks.exports.os.listdir", no_proc)
    with pytest.raises(SinkError, match="/proc is missing") as refused:
        open_for_writing(created, identity)
    assert "Jsonl" in refused.value.next_step


def test_special_files_are_no_directories(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in ("/dev/null", "/dev/null/x", tmp_path / "fifo", tmp_path / "fifo" / "x"):
        with pytest.raises(SinkError, match=r"not a directory|can't use"):
            resolve_export(str(path), None)


def test_sink_options_are_checked() -> None:
    assert parse_sink_option("log:top=7") == (LogSink, {"top": 7})
    found, options = parse_sink_option("metrics-json:path=/a,b=c:d")
    assert (found.NAME, options) == ("metrics-json", {"path": "/a,b=c:d"})
    for text, message in (
        ("nothing", "unknown output"),
        ("log:top=-1", "out of range"),
        ("log:bottom=1", "no option bottom"),
        ("log:top", "has no value"),
    ):
        with pytest.raises(UsageError, match=message):
            parse_sink_option(text)
    with pytest.raises(UsageError, match="needs a directory"):
        Output(*parse_sink_option("jsonl"))


def test_built_in_sinks_need_no_package_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("msmon.sinks.catalog.entry_points", lambda: {})
    assert sink_class("jsonl") is JsonlSink
    assert {"jsonl", "log", "metrics-json", "sqlite", "tensorboard"} <= {
        name for name, _, _ in describe_sinks()
    }


TINY_SINK = """
from msmon.sinks.base import SessionOutput, Sink

class TinySink(Sink):
    NAME = "tiny"
    HELP = "Counts windows."

    def open_session(self, session):
        return SessionOutput()

    def close_session(self, session_id, seq, end):
        pass
"""


def make_wheel(directory: Path) -> Path:
    """Make a package with one sink and its entry point; no build backend is needed."""
    information = "tiny_sink-1.dist-info"
    files = {
        "tiny_sink.py": TINY_SINK,
        f"{information}/METADATA": "Metadata-Version: 2.1\nName: tiny-sink\nVersion: 1\n",
        f"{information}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{information}/entry_points.txt": "[msmon.sinks]\ntiny = tiny_sink:TinySink\n",
    }
    files[f"{information}/RECORD"] = "".join(f"{name},,\n" for name in files)
    path = directory / "tiny_sink-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


def test_a_sink_of_another_package_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    wheel = make_wheel(tmp_path)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*command, "--target", str(site), str(wheel)], check=True, capture_output=True)
    monkeypatch.syspath_prepend(str(site))
    found, options = parse_sink_option("tiny")
    assert (found.NAME, options) == ("tiny", {})
    assert ("tiny", "Counts windows.", ()) in describe_sinks()


def test_a_directory_of_an_output_that_others_may_change_is_warned_of_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    for mode, warnings in ((0o755, 0), (0o777, 1)):
        shared.chmod(mode)
        Broker([], Output(JsonlSink, {"path": str(shared / "all")}))
        assert len(caplog.messages) == warnings
    assert f"output jsonl: {shared} can be changed by other users" in caplog.text
    assert f"chmod go-w {shared}" in caplog.text
