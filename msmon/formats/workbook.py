"""XLSX workbooks of activity records: a sheet per kind, written in constant memory.

Rules that keep every value:

* Numbers are number cells while below 10^15 (Excel keeps 15 digits), times counted in
  ns; beyond, they are exact decimal text. Wall-clock times are therefore text
  ("1700000000000000.123", µs), durations and small ids numbers. What is no number or
  infinite is an empty cell.
* Text is never read as formula, link or number. Characters that XML can't hold show as
  ``\\uNNNN``. A text over Excel's 32,767 characters is cut in its cell, which names an entry
  of the sheet "Long texts", where the whole text stands in parts.
* Records past Excel's last row go on in a further sheet, "Kernel (2)".

The file is written beside its place and renamed when complete.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from msmon.errors import SinkError
from msmon.formats.sheets import Microseconds, SheetColumn, sheet_columns
from msmon.records.batch import Batch, Column
from msmon.records.kinds import ActivityKind
from msmon.records.markers import MarkerEvents

EXCEL_ROWS = 1_048_576
EXCEL_TEXT_LENGTH = 32_767
"""Longest text of a cell, in UTF-16 code units."""
EXACT_NUMBERS_BELOW = 10**15
LONG_TEXTS_SHEET = "Long texts"
CHUNK_RECORDS = 16_384
FILE_MODE = 0o640

_NOT_IN_XML = re.compile("[\ud800-\udfff\ufffe\uffff]")


class WorkbookWriter:
    """Writes one workbook; a context manager.

    Batches of all kinds may come in any order. :meth:`close` puts the file in its
    place; leaving the context by an exception, or :meth:`discard`, leaves nothing
    behind and an existing file untouched.
    """

    def __init__(
        self,
        path: Path,
        kinds: Iterable[ActivityKind] = (),
        rows_per_sheet: int = EXCEL_ROWS,
        scratch: Path | None = None,
    ) -> None:
        """Begin a workbook with a sheet (at least its header) for each of ``kinds``.

        ``scratch`` is the directory for what is unfinished, on the file system of ``path``; by
        default the directory of ``path``. Raises SinkError when it can't be written.
        """
        self._path = path
        self._rows_per_sheet = rows_per_sheet
        self._sheets: dict[ActivityKind, _Sheet] = {}
        try:
            # Row data and the unfinished file live here, so that one removal takes all.
            self._scratch = tempfile.TemporaryDirectory(
                dir=scratch or path.parent, prefix=f".{path.name}."
            )
        except OSError as error:
            raise _cannot_write(path, error) from error
        try:
            self._workbook = _new_workbook(Path(self._scratch.name))
            self._cells = _CellWriter(self._workbook)
            for kind in sorted(kinds):
                self._sheet(kind)
        except BaseException:
            self._scratch.cleanup()
            raise

    def write(self, batch: Batch) -> None:
        """Append records of one kind other than Marker. Raises SinkError when the disk fails."""
        self._append(batch.kind, batch.records, batch.strings)

    def write_markers(self, markers: MarkerEvents) -> None:
        """Append ranges and marks. Raises SinkError when the disk fails."""
        self._append(ActivityKind.Marker, markers.events, markers.strings)

    def close(self) -> None:
        """Complete the file and put it in its place. Raises SinkError; nothing is left then."""
        try:
            self._workbook.close()
            os.chmod(self._unfinished, FILE_MODE)
            self._unfinished.replace(self._path)
        except (OSError, _xlsxwriter_error()) as error:
            raise _cannot_write(self._path, error) from error
        finally:
            self._scratch.cleanup()

    def discard(self) -> None:
        """Remove everything written so far."""
        for worksheet in self._workbook.worksheets():
            worksheet._opt_close()
        self._workbook.fileclosed = True
        self._scratch.cleanup()

    def __enter__(self) -> WorkbookWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            self.discard()

    @property
    def _unfinished(self) -> Path:
        return Path(self._scratch.name) / _UNFINISHED

    def _append(self, kind: ActivityKind, records: Column, strings: Sequence[str]) -> None:
        sheet = self._sheet(kind)
        try:
            sheet.append(records, strings)
        except OSError as error:
            raise _cannot_write(self._path, error) from error

    def _sheet(self, kind: ActivityKind) -> _Sheet:
        if kind not in self._sheets:
            self._sheets[kind] = _Sheet(
                kind.name, sheet_columns(kind), self._cells, self._rows_per_sheet
            )
        return self._sheets[kind]


_UNFINISHED = "workbook.xlsx"


def _new_workbook(scratch: Path) -> Any:
    import xlsxwriter

    return xlsxwriter.Workbook(
        str(scratch / _UNFINISHED),
        {"constant_memory": True, "tmpdir": str(scratch), "use_zip64": True},
    )


def _xlsxwriter_error() -> type[Exception]:
    from xlsxwriter.exceptions import XlsxWriterException

    return XlsxWriterException  # type: ignore[no-any-return]


def _cannot_write(path: Path, error: Exception) -> SinkError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return SinkError(f"can't write {path}: {reason}", "nothing was left behind")


class _Sheet:
    """The rows of one kind, over as many worksheets as they need."""

    def __init__(
        self, name: str, columns: Sequence[SheetColumn], cells: _CellWriter, rows_per_sheet: int
    ) -> None:
        self._name = name
        self._columns = columns
        self._cells = cells
        self._rows_per_sheet = rows_per_sheet
        self._worksheet_count = 0
        self._begin_worksheet()

    def append(self, records: Column, strings: Sequence[str]) -> None:
        for first in range(0, len(records), CHUNK_RECORDS):
            part = records[first : first + CHUNK_RECORDS]
            for values in zip(*(column.values(part, strings) for column in self._columns)):
                if self._next_row == self._rows_per_sheet:
                    self._begin_worksheet()
                self._cells.write_row(self._worksheet, self._next_row, values)
                self._next_row += 1

    def _begin_worksheet(self) -> None:
        self._worksheet_count += 1
        numbered = f"{self._name} ({self._worksheet_count})"
        self._worksheet = self._cells.add_worksheet(
            self._name if self._worksheet_count == 1 else numbered
        )
        self._cells.write_row(self._worksheet, 0, [column.header for column in self._columns])
        self._next_row = 1


class _CellWriter:
    """Turns values into cells. Texts too long for a cell go whole into the sheet of long texts."""

    def __init__(self, workbook: Any) -> None:
        self._workbook = workbook
        self._plain = workbook.add_format()
        self._long_numbers: dict[bytes, int] = {}
        self._long_sheet: Any = None
        self._long_row = 0

    def add_worksheet(self, name: str) -> Any:
        return self._workbook.add_worksheet(name)

    def write_row(self, worksheet: Any, row: int, values: Sequence[Any]) -> None:
        for column, value in enumerate(values):
            if value is None or (isinstance(value, float) and not math.isfinite(value)):
                continue
            if isinstance(value, str):
                self._write_text(worksheet, row, column, value)
            elif _is_exact(value):
                shown = value / 1000 if isinstance(value, Microseconds) else value
                worksheet.write_number(row, column, shown)
            else:
                worksheet.write_string(row, column, _exact_text(value))

    def _write_text(self, worksheet: Any, row: int, column: int, text: str) -> None:
        if not text.isascii():
            text = _NOT_IN_XML.sub(lambda match: f"\\u{ord(match.group()):04x}", text)
        if len(text) * 2 > EXCEL_TEXT_LENGTH and _utf16_length(text) > EXCEL_TEXT_LENGTH:
            text = self._cut(text)
        self._write_plain(worksheet, row, column, text)

    def _write_plain(self, worksheet: Any, row: int, column: int, text: str) -> None:
        if text.startswith("<r>") and text.endswith("</r>"):
            # xlsxwriter would take this for its own rich-text markup
            worksheet.write_rich_string(row, column, self._plain, text[:1], text[1:])
        else:
            worksheet.write_string(row, column, text)

    def _cut(self, text: str) -> str:
        number = self._long_text_number(text)
        reference = f"… [whole text: {LONG_TEXTS_SHEET}, number {number}]"
        # a character takes up to two code units
        return text[: EXCEL_TEXT_LENGTH // 2 - len(reference)] + reference

    def _long_text_number(self, text: str) -> int:
        digest = hashlib.sha256(text.encode()).digest()
        if digest not in self._long_numbers:
            self._long_numbers[digest] = len(self._long_numbers) + 1
            self._write_long_text(self._long_numbers[digest], text)
        return self._long_numbers[digest]

    def _write_long_text(self, number: int, text: str) -> None:
        if self._long_sheet is None:
            self._long_sheet = self.add_worksheet(LONG_TEXTS_SHEET)
            for column, header in enumerate(("Number", "Part", "Text")):
                self._long_sheet.write_string(0, column, header)
        part_length = EXCEL_TEXT_LENGTH // 2
        for part, first in enumerate(range(0, len(text), part_length), start=1):
            self._long_row += 1
            self._long_sheet.write_number(self._long_row, 0, number)
            self._long_sheet.write_number(self._long_row, 1, part)
            self._write_plain(
                self._long_sheet, self._long_row, 2, text[first : first + part_length]
            )


def _is_exact(value: Any) -> bool:
    if isinstance(value, float):
        return True
    return bool(-EXACT_NUMBERS_BELOW < value < EXACT_NUMBERS_BELOW)


def _exact_text(value: Any) -> str:
    """Return "1700000000000000.123" for a time in ns, else the plain number."""
    if isinstance(value, Microseconds):
        whole, thousandths = divmod(abs(int(value)), 1000)
        return f"{'-' if value < 0 else ''}{whole}.{thousandths:03d}"
    return str(value)


def _utf16_length(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2
