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

from msmon.daemon.outputs.outlet import Outlet
from msmon.daemon.outputs.outputs import Outputs
from msmon.errors import MsmonError, SinkError, UsageError
from msmon.sessions import MonitorSettings, SessionEnd
from msmon.sinks.catalog import describe_sinks, parse_sink_option, sink_class
from msmon.sinks.exports import create_file, give_to, resolve_export
from msmon.sinks.jsonl.sink import JsonlSink
from msmon.sinks.log import LogSink
from msmon.sinks.sqlite.file import open_for_writing

END = SessionEnd(9, "stop")


class Broker:
    """What the broker does with outputs: collects acknowledgements and answers."""

    def __init__(self, roots: list[Path], *outlets: Outlet) -> None:
        self.acknowledged: dict[str, int] = {}
        self._changed = threading.Condition()
        self.outputs = Outputs(outlets, roots, self._commit)

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
        self.outputs.open_session(session, lambda item: (answers.append(item), answered.set()))
        assert answered.wait(10)
        return answers[0]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker([tmp_path / "root"], Outlet(LogSink, {"top": 3}))
    yield broker
    broker.outputs.close(5)


def test_an_exported_session_is_acknowledged_when_it_is_in_the_file(
    broker: Broker, kernels: Any, session: Any, tmp_path: Path
) -> None:
    answer = broker.open(session(tmp_path))
    assert isinstance(answer, tuple)
    (path,) = answer
    batch = kernels(50)
    broker.outputs.put_records("session-0", 2, int(batch.kind), 50, batch.to_frames())
    broker.wait("session-0", 2)
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT count(*) FROM TASK").fetchone() == (50,)
    connection.close()
    broker.outputs.close_session("session-0", 3, END)
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
    broker.outputs.put_records("session-0", 2, int(batch.kind), records, batch.to_frames())
    broker.outputs.close_session("session-0", 3, END)
    broker.wait("session-0", 3)
    files = broker.outputs.files("session-0")
    assert len(files) == told
    exist = sorted(tmp_path.glob("*.jsonl"))
    if "*" in "".join(files):  # more than can be named
        assert sorted(tmp_path.glob(Path(files[0]).name)) == exist
    else:
        assert sorted(files) == [str(path) for path in exist]


def test_a_session_without_export_is_acknowledged_at_once(
    broker: Broker, session: Any, tmp_path: Path
) -> None:
    assert broker.open(session(tmp_path, log_file="")) == ()
    fields = {"index": 0, "start_ns": 0, "end_ns": 10**9}
    broker.outputs.put_window("session-0", 2, fields, (b"", b"", b""))
    assert broker.acknowledged == {"session-0": 2}


def test_an_output_of_the_daemon_takes_every_session(
    kernels: Any, session: Any, tmp_path: Path
) -> None:
    broker = Broker([], Outlet(JsonlSink, {"path": str(tmp_path / "all")}))
    assert broker.outputs.wants_records
    (path,) = broker.open(session(tmp_path, log_file=""))
    batch = kernels(10)
    broker.outputs.put_records("session-0", 2, int(batch.kind), 10, batch.to_frames())
    broker.wait("session-0", 2)
    assert len(Path(path).read_text().splitlines()) == 10
    broker.outputs.close(5)


def test_an_export_that_can_not_be_opened_is_the_answer(
    broker: Broker, session: Any, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    answer = broker.open(session(tmp_path / "file" / "below"))
    assert isinstance(answer, SinkError)
    broker.outputs.close_session("session-0", 2, END)
    broker.wait("session-0", 2)


def test_settings_are_completed_for_an_export(broker: Broker, tmp_path: Path) -> None:
    settings = MonitorSettings.from_fields({"log_file": str(tmp_path / "a" / ".." / "out")})
    checked = broker.outputs.check_export(settings, os.geteuid())
    assert checked.log_file == str(tmp_path / "out")
    assert checked.ship_records
    assert not (tmp_path / "out").exists()  # it is made with the first file
    assert not broker.outputs.check_export(MonitorSettings(), 1234).ship_records


def test_other_users_may_only_export_below_a_root(tmp_path: Path) -> None:
    root, stranger = tmp_path / "root", os.geteuid() + 1
    root.mkdir()
    assert resolve_export(str(root / "x"), stranger, [root]) == root / "x"
    (root / "link").symlink_to(tmp_path)
    for path in (tmp_path / "y", root / ".." / "y", root / "link" / "y", tmp_path / "root2"):
        with pytest.raises(UsageError, match="may not export"):
            resolve_export(str(path), stranger, [root])
    with pytest.raises(UsageError, match="--export-root"):
        resolve_export(str(root), stranger, [])
    assert not (tmp_path / "y").exists()


def test_paths_that_can_not_be_a_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    uid = os.geteuid()
    with pytest.raises(SinkError, match="is not a directory"):
        resolve_export(str(tmp_path / "file"), uid, [])
    with pytest.raises(UsageError, match="not an absolute path"):
        resolve_export("relative", uid, [])
    with pytest.raises(UsageError, match="not an absolute path"):
        resolve_export("/tmp/\0", uid, [])
    with pytest.raises(SinkError, match="can't use"):
        resolve_export(str(tmp_path / ("n" * 300)), uid, [])
    odd = tmp_path / "空 格;$(x)\n"
    assert resolve_export(str(odd), uid, []) == odd


def test_no_file_goes_where_a_directory_was_replaced_after_the_check(tmp_path: Path) -> None:
    victim, allowed = tmp_path / "victim", tmp_path / "root" / "mine"
    victim.mkdir()
    checked = resolve_export(str(allowed / "out"), os.geteuid(), [])
    assert create_file(checked, "a", -1).read_text() == ""
    allowed.rename(tmp_path / "former")
    allowed.symlink_to(victim)
    with pytest.raises(SinkError, match=f"{allowed} has been replaced"):
        create_file(checked, "b", -1)
    assert not list(victim.iterdir())


def test_a_link_in_the_place_of_a_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "name").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError):
        create_file(tmp_path, "name", -1)
    assert not (tmp_path / "elsewhere").exists()


def test_sqlite_does_not_write_through_a_directory_that_became_a_link(tmp_path: Path) -> None:
    victim, out = tmp_path / "victim", tmp_path / "out"
    victim.mkdir()
    path = create_file(out, "x.db", -1)
    create_file(victim, "x.db", -1)
    out.rename(tmp_path / "former")
    out.symlink_to(victim)
    with pytest.raises(SinkError, match="moved or replaced"):
        open_for_writing(path)
    assert (victim / "x.db").stat().st_size == 0
    assert [file.name for file in victim.iterdir()] == ["x.db"]


def test_without_proc_sqlite_is_refused_and_the_remedy_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_proc(path: str) -> list[str]:
        raise FileNotFoundError(path)

    created = create_file(tmp_path, "x.db", -1)
    monkeypatch.setattr("msmon.sinks.exports.os.listdir", no_proc)
    with pytest.raises(SinkError, match="/proc is missing") as refused:
        open_for_writing(created)
    assert "Jsonl" in refused.value.next_step


def test_special_files_are_no_directories(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in ("/dev/null", "/dev/null/x", tmp_path / "fifo", tmp_path / "fifo" / "x"):
        with pytest.raises(SinkError, match=r"not a directory|can't use"):
            resolve_export(str(path), os.geteuid(), [])


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
        Outlet(*parse_sink_option("jsonl"))


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


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_files_of_a_user_without_an_entry_in_the_password_file_belong_to_that_user(
    tmp_path: Path,
) -> None:
    """The job runs in a container, whose users this machine does not know."""
    path = tmp_path / "export.db"
    path.touch()
    give_to(path, 3_000_000)
    assert path.stat().st_uid == 3_000_000
