"""The database file of one session: created or continued, written in transactions.

Every transaction also brings the texts, devices and counters up to date and stores the
sequence number of the last message in it, so that the file is whole at any moment
and an interrupted session goes on exactly where it was written to.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from msmon.errors import SinkError
from msmon.records.batch import Batch, printable
from msmon.sessions import Gap, SessionEnd, SessionInfo
from msmon.sinks.base import Progress
from msmon.sinks.exports import FileIdentity, ReplacedFile, remove_file
from msmon.sinks.file_names import create_session_file
from msmon.sinks.sqlite import schema
from msmon.sinks.sqlite.file import (
    CHECKPOINT_S,
    AlteredFile,
    checkpoint,
    close_for_good,
    identity_at,
    open_for_writing,
)
from msmon.sinks.sqlite.file_state import FileState
from msmon.sinks.sqlite.host_identity import host_uid
from msmon.sinks.sqlite.insert import Rows, insert
from msmon.sinks.sqlite.row_builder import RowBuilder
from msmon.sinks.sqlite.schema import Table

NO_DEVICE = -1


_log = logging.getLogger(__name__)


class SessionDatabase:
    """The file of one session. The thread of the sink writes it.

    Methods raise SinkError; the object must then be closed and made anew. After a failed write
    nothing more is committed: SQLite may have rolled back rows, and a commit would store their
    sequence number as written.
    """

    def __init__(self, session: SessionInfo, progress: Progress) -> None:
        self.session = session
        self._rows = RowBuilder(session)
        self._tables: set[str] = set()
        self._known_devices: set[int] = set()
        self._state: dict[str, Any] = {}
        self._ended = False
        self._failure = ""
        self._checkpoint_due_s = 0.0
        """When the log is next brought into the file (monotonic)."""
        self.written_seq = 0
        self._seq = 0
        if not self._continue(progress):
            self._begin_file(progress)

    def _continue(self, progress: Progress) -> bool:
        """Continue the file that the progress names, and return whether that was possible.

        Returns False if the file was removed or replaced; another file in its place isn't
        touched. Raises SinkError if the file can't be written now. The sink then tries again,
        because a second file would split the session.
        """
        kept = FileState.of(progress)
        if kept is None or kept.path.parent != Path(self.session.settings.log_file):
            return False
        self.path = kept.path
        try:
            if identity_at(kept.path) != kept.identity:
                raise AlteredFile(f"{kept.path} is another file now")
            self._open(kept.identity)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise SinkError(f"can't read {kept.path}: {error.strerror}") from error
        except (AlteredFile, ReplacedFile) as error:
            _log.warning("%s; the session goes on in a new file", error.message)
            return False
        return True

    def _begin_file(self, progress: Progress) -> None:
        """Make a new file. The progress names it before it holds data, so it is found again."""
        self.path = create_session_file(self.session, "db")
        try:
            identity = identity_at(self.path)
            progress.keep(FileState(self.path, identity).to_json())
            self._open(identity)
        except BaseException:
            remove_file(self.path)  # The next attempt makes another file.
            raise

    def _open(self, identity: FileIdentity) -> None:
        self._connection = open_for_writing(self.path, identity)
        try:
            self._begin()
            if not self._load():
                self._create()
            self.commit()
        except BaseException:
            self._connection.close()
            raise

    def write_records(self, seq: int, batch: Batch) -> None:
        """Insert one batch."""
        self._begin()
        try:
            for rows in self._rows.rows(batch):
                self._insert(rows)
        except sqlite3.Error as error:
            raise self._failed(error) from error
        self._seq = seq

    def write_gap(self, seq: int, gap: Gap) -> None:
        """Insert one row per kind about lost records; ``records`` is NULL if unknown."""
        kinds: Iterable[tuple[str, int | None]] = [("", None)]
        if gap.records is not None:
            kinds = sorted(gap.records.items())
        self._execute_many(
            f"INSERT INTO {schema.GAPS.name} VALUES (?,?,?,?,?,?)",
            [
                (gap.start_ns, gap.end_ns, gap.stage, kind, count, printable(gap.reason))
                for kind, count in kinds
            ],
        )
        self._seq = seq

    def write_meta(self, seq: int, key: str, value: str) -> None:
        """Set a row of META_DATA."""
        self._execute_many("DELETE FROM META_DATA WHERE name = ?", [(key,)])
        self._execute_many("INSERT INTO META_DATA VALUES (?,?)", [(key, printable(value))])
        self._seq = seq

    def end(self, seq: int, end: SessionEnd) -> None:
        """Record the end of the session."""
        self.write_meta(seq, schema.END_KEY, end.reason)
        self._execute_many("UPDATE SESSION_TIME_INFO SET endTimeNs = ?", [(end.end_ns,)])
        self._ended = True

    def pass_over(self, seq: int) -> None:
        """Count a message that has no rows, so that its sequence number is stored."""
        self._seq = max(self._seq, seq)

    def commit(self) -> None:
        """Bring texts, devices and counters up to date and end the transaction."""
        if self._failure:
            raise SinkError(self._failure)
        if self._connection.in_transaction or self._seq > self.written_seq:
            self._commit()
        if time.monotonic() >= self._checkpoint_due_s:
            checkpoint(self._connection)
            self._checkpoint_due_s = time.monotonic() + CHECKPOINT_S

    def close(self) -> None:
        """Close the file without what was not committed. It can be copied alone then."""
        close_for_good(self._connection)

    def _commit(self) -> None:
        self._begin()
        strings = self._rows.strings
        try:
            self._connection.executemany("INSERT INTO STRING_IDS VALUES (?,?)", strings.new)
            self._write_devices()
            self._write_state()
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise self._failed(error) from error
        strings.new.clear()
        self.written_seq = self._seq

    def _begin(self) -> None:
        if self._connection.in_transaction:
            return
        try:
            self._connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            raise self._failed(error) from error

    def _failed(self, error: sqlite3.Error) -> SinkError:
        self._failure = f"can't write {self.path}: {error}"
        return SinkError(self._failure)

    def _execute_many(self, sql: str, rows: list[tuple[Any, ...]]) -> None:
        self._begin()
        try:
            self._connection.executemany(sql, rows)
        except sqlite3.Error as error:
            raise self._failed(error) from error

    def _insert(self, rows: Rows) -> None:
        self._ensure(rows.table)
        insert(self._connection, rows)

    def _ensure(self, table: Table) -> None:
        if table.name not in self._tables:
            self._connection.execute(table.create_sql)
            self._tables.add(table.name)

    def _create(self) -> None:
        """Make the tables that every file has from its start, and their constant rows."""
        execute = self._connection.execute
        for table in schema.FIRST_TABLES:
            self._ensure(table)
        for table, values in schema.ENUMS.items():
            sql = f"INSERT INTO {table.name} VALUES (?,?)"
            self._connection.executemany(sql, values.items())
        session = self.session
        meta = {
            **schema.META_ROWS,
            schema.SESSION_KEY: session.session_id,
            schema.END_KEY: schema.NOT_ENDED,
        }
        self._connection.executemany("INSERT INTO META_DATA VALUES (?,?)", meta.items())
        execute("INSERT INTO HOST_INFO VALUES (?,?)", (host_uid(), session.process.host))
        times = (session.start_ns, session.start_ns)
        execute("INSERT INTO SESSION_TIME_INFO VALUES (?,?)", times)
        execute("INSERT INTO RANK_DEVICE_MAP VALUES (?,?)", (session.process.rank, NO_DEVICE))
        execute("INSERT INTO NPU_INFO VALUES (?,'UNKNOWN')", (NO_DEVICE,))
        execute("INSERT INTO MSMON_STATE VALUES ('last_seq', 0)")

    def _load(self) -> bool:
        """Read the state of an interrupted session from the file. Return False for a new file."""
        execute = self._connection.execute
        state = dict(execute("SELECT name, value FROM MSMON_STATE"))
        if not state:
            return False
        self._tables = {name for (name,) in execute("SELECT name FROM sqlite_master")}
        self._rows.strings.load(execute("SELECT id, value FROM STRING_IDS"))
        devices = {number for (number,) in execute("SELECT id FROM NPU_INFO")} - {NO_DEVICE}
        self._known_devices = devices
        self._rows.devices = set(devices)
        if schema.STEP_TIME.name in self._tables:
            self._rows.steps = {step for (step,) in execute("SELECT id FROM STEP_TIME")}
        self.written_seq = self._seq = state.pop("last_seq")
        self._rows.next_task_id = state.pop("next_task_id", 0)
        self._rows.next_op_id = state.pop("next_op_id", 0)
        self._rows.unpaired_markers = state.pop("unpaired_markers", 0)
        numbers = state.get("collective_numbers", state.get("collectives"))  # its name in 0.1.0
        if numbers is not None:
            self._rows.numbering.restore(numbers)
        if "marker_records" in state:  # of version 0.1.0
            self._rows.pairing.restore(state["marker_records"], state["marker_texts"])
        else:
            self._rows.pairing.restore_pieces(state)
        self._state = state
        return True

    def _write_devices(self) -> None:
        """Add new devices to NPU_INFO.

        RANK_DEVICE_MAP gets one device only: readers join it with other tables, and a second
        row would double their results.
        """
        seen = self._rows.devices - {NO_DEVICE}
        new = sorted(seen - self._known_devices)
        if not new:
            return
        execute = self._connection.execute
        execute("DELETE FROM NPU_INFO WHERE id = ?", (NO_DEVICE,))
        rows = [(device,) for device in new]
        self._connection.executemany("INSERT INTO NPU_INFO VALUES (?,'UNKNOWN')", rows)
        if not self._known_devices:
            execute("UPDATE RANK_DEVICE_MAP SET deviceId = ?", (new[0],))
        self._known_devices = seen

    def _write_state(self) -> None:
        """Store the counters and the sequence number. SinkError: another has changed it."""
        execute = self._connection.execute
        update = "UPDATE MSMON_STATE SET value = ? WHERE name = 'last_seq' AND value = ?"
        if execute(update, (self._seq, self.written_seq)).rowcount != 1:
            raise SinkError(f"{self.path} is written by another daemon", "stop one of them")
        rows = self._rows
        state: dict[str, Any] = {
            "next_task_id": rows.next_task_id,
            "next_op_id": rows.next_op_id,
            "unpaired_markers": rows.unpaired_markers,
            "collective_numbers": rows.numbering.as_json(),
            **rows.pairing.to_pieces(),
        }
        gone = [(name,) for name in self._state.keys() - state.keys()]
        self._connection.executemany("DELETE FROM MSMON_STATE WHERE name = ?", gone)
        changed = [item for item in state.items() if self._state.get(item[0]) != item[1]]
        self._connection.executemany("INSERT OR REPLACE INTO MSMON_STATE VALUES (?,?)", changed)
        self._state = state
        if not self._ended:
            execute("UPDATE SESSION_TIME_INFO SET endTimeNs = ?", (time.time_ns(),))
