"""The database as a file: file systems without locks or shared memory, a killed writer."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from msmon.daemon.outputs.stored_progress import ProgressDirectory
from msmon.sinks.sqlite import file as sqlite_file
from msmon.sinks.sqlite.sink import SqliteSink


def ask(path: str | Path, sql: str) -> Any:
    """Return the one value of a query's one row."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        ((value,),) = connection.execute(sql).fetchall()
    return value


_NO_LOCKS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
static int forward(const char *name, int fd, int command, void *argument) {
    if (command == F_SETLK || command == F_SETLKW || command == F_GETLK) {
        errno = ENOLCK;
        return -1;
    }
    return ((int (*)(int, int, ...))dlsym(RTLD_NEXT, name))(fd, command, argument);
}
int fcntl(int fd, int command, ...) {
    va_list list; va_start(list, command); void *argument = va_arg(list, void *); va_end(list);
    return forward("fcntl", fd, command, argument);
}
int fcntl64(int fd, int command, ...) {
    va_list list; va_start(list, command); void *argument = va_arg(list, void *); va_end(list);
    return forward("fcntl64", fd, command, argument);
}
"""

_WRITE_WITHOUT_LOCKS = """
import importlib.util, logging, pathlib, sys
logging.basicConfig(level=logging.WARNING)
spec = importlib.util.spec_from_file_location("shared", sys.argv[1])
shared = importlib.util.module_from_spec(spec)
spec.loader.exec_module(shared)
from msmon.sinks.sqlite.sink import SqliteSink
from msmon.sessions import SessionEnd
sink = SqliteSink()
for rank in (0, 1):
    session = shared.make_session(pathlib.Path(sys.argv[2]), rank)
    sink.open_session(session)
    sink.write_records(session.session_id, 2, shared.make_kernels(500))
    sink.commit()
    sink.close_session(session.session_id, 3, SessionEnd(1, "stop"))
    sink.commit()
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler to make locks fail with")
def test_a_file_system_without_locks_is_used_and_mentioned_once(tmp_path: Path) -> None:
    library = tmp_path / "nolocks.so"
    source = tmp_path / "nolocks.c"
    source.write_text(_NO_LOCKS)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    output = tmp_path / "output"
    shared = Path(__file__).parents[2] / "fixtures" / "sink_input.py"
    done = subprocess.run(
        [sys.executable, "-c", _WRITE_WITHOUT_LOCKS, str(shared), str(output)],
        env={**os.environ, "LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr.count("no file locks") == 1
    files = sorted(output.iterdir())
    assert [ask(path, "SELECT count(*) FROM TASK") for path in files] == [500, 500]


def test_without_shared_memory_a_rollback_journal_serves(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "file.db"
    path.touch()
    wal, rollback, _ = sqlite_file.MODES
    no_maps = sqlite_file.FileMode("unix-none", wal.journal_mode, "")
    monkeypatch.setattr(sqlite_file, "MODES", (no_maps, rollback))
    connection = sqlite_file.open_for_writing(path, sqlite_file.identity_at(path))
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    connection.close()
    assert "shared memory" in caplog.text


_WRITE_UNTIL_KILLED = """
import importlib.util, pathlib, sys
spec = importlib.util.spec_from_file_location("shared", sys.argv[1])
shared = importlib.util.module_from_spec(spec)
spec.loader.exec_module(shared)
from msmon.daemon.outputs.stored_progress import ProgressDirectory
from msmon.sinks.sqlite.sink import SqliteSink
sink = SqliteSink()
session = shared.make_session(pathlib.Path(sys.argv[2]))
kept = ProgressDirectory(pathlib.Path(sys.argv[3]), "sqlite")
sink.open_session(session, kept.of(session.session_id))
for seq in range(2, 100_000):
    sink.write_records(session.session_id, seq, shared.make_kernels(200, seq))
    sink.commit()
    print(seq, flush=True)
"""


def test_a_killed_writer_leaves_a_whole_file(tmp_path: Path, session: Callable[..., Any]) -> None:
    shared = Path(__file__).parents[2] / "fixtures" / "sink_input.py"
    writer = subprocess.Popen(
        [
            sys.executable,
            "-c",
            _WRITE_UNTIL_KILLED,
            str(shared),
            str(tmp_path),
            str(tmp_path / "state"),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert writer.stdout is not None
    committed = [int(writer.stdout.readline()) for _ in range(20)][-1]
    writer.send_signal(signal.SIGKILL)
    committed = max([committed, *map(int, writer.stdout.read().split())])
    writer.stdout.close()
    writer.wait()
    sink = SqliteSink()
    kept = ProgressDirectory(tmp_path / "state", "sqlite")
    opened = sink.open_session(session(tmp_path), kept.of("session-0"))
    sink.close()
    assert opened.written_seq >= committed
    path = opened.files[0]
    batches = opened.written_seq - 1
    assert ask(path, "SELECT count(*) FROM TASK") == 200 * batches
    assert ask(path, "PRAGMA integrity_check") == "ok"
