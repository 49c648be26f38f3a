"""A conversion from start to end: find the sources, choose the output, move the records."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from msmon.conversion.database_source import DatabaseSource
from msmon.conversion.jsonl_source import JsonlSource
from msmon.conversion.output import ExportOutput, Output
from msmon.conversion.source import FILE_NAME, Source
from msmon.conversion.table_outputs import ParquetOutput, WorkbookOutput
from msmon.conversion.trace_output import TraceOutput
from msmon.errors import MsmonError, SinkError, UsageError

FORMATS = ("jsonl", "db", "xlsx", "perfetto", "parquet")
TRACE_NAME = "msmon_trace.json"

_SQLITE_MAGIC = b"SQLite format 3\0"


@dataclass
class Report:
    """What a conversion did. ``skipped``: parts of the input that could not be read;
    ``left_out``: records that the output's format has no place for."""

    files: list[Path] = field(default_factory=list)
    records: dict[str, int] = field(default_factory=dict)
    skipped: int = 0
    left_out: int = 0
    problems: list[str] = field(default_factory=list)


def find_sources(paths: Iterable[Path]) -> list[Source]:
    """Return a source per process for files and directories of exported files.

    Rotated JSONL files of one process are one source. Raises UsageError for a path that
    is missing or a directory without exported files, SinkError for what can't be read.
    """
    files = sorted(set(itertools.chain.from_iterable(map(_files_of, paths))), key=_in_order)
    rotated: dict[tuple[str, ...], list[Path]] = {}
    sources: list[Source] = []
    for path in files:
        if _is_database(path):
            sources.append(DatabaseSource(path))
        else:
            rotated.setdefault(_process_of(path), []).append(path)
    sources.extend(JsonlSource(group) for group in rotated.values())
    return sorted(sources, key=lambda source: (source.process.rank, source.stem))


def choose_output(target_format: str, out: Path | None, sources: Sequence[Source]) -> Output:
    """Return the output for a format.

    ``out`` is a file for a trace and for a workbook of a single source, otherwise a
    directory (default: the current one). Raises UsageError, SinkError or OSError.
    """
    here = Path(".")
    if target_format in ("db", "jsonl"):
        return ExportOutput("DB" if target_format == "db" else "Jsonl", out or here)
    if target_format == "parquet":
        return ParquetOutput(out or here)
    if target_format == "perfetto":
        path = out or here / TRACE_NAME
        return TraceOutput(path / TRACE_NAME if path.is_dir() else path)
    single = len(sources) == 1 and not (out is not None and out.is_dir())
    if not single:
        return WorkbookOutput(out or here, single=False)
    return WorkbookOutput(out or here / f"{sources[0].stem}.xlsx", single=True)


def convert(
    sources: Sequence[Source], output: Output, advance: Callable[[int], None] = lambda size: None
) -> Report:
    """Move all records; ``advance`` is told how many more bytes of input were read.

    Raises SinkError when nothing at all could be read or the output fails; no unfinished
    file is left then.
    """
    report = Report()
    try:
        for source in sources:
            _convert_source(source, output, advance, report)
        if not report.records and report.skipped:
            raise SinkError(
                f"nothing could be read: {report.skipped} damaged parts",
                "; ".join(report.problems) or "are these files that msmon or msMonitor exported?",
            )
        report.files = output.finish()
    except OSError as error:
        output.discard()
        raise SinkError(f"can't convert: {error}") from error
    except (MsmonError, KeyboardInterrupt):
        output.discard()
        raise
    report.left_out = output.left_out
    return report


def _convert_source(
    source: Source, output: Output, advance: Callable[[int], None], report: Report
) -> None:
    batches = source.batches(advance)
    first = next(batches, None)
    if first is not None or not source.skipped:
        output.begin(source)
        for batch in itertools.chain([first] if first is not None else [], batches):
            output.write(batch)
            name = batch.kind.name
            report.records[name] = report.records.get(name, 0) + len(batch)
        output.end(source)
    report.skipped += source.skipped
    report.problems += [f"{source.paths[0]}: {problem}" for problem in source.problems]


def _files_of(path: Path) -> list[Path]:
    if not path.exists():
        raise UsageError(f"{path} does not exist")
    if not path.is_dir():
        return [path]
    found = [item for item in path.iterdir() if FILE_NAME.match(item.name)]
    if not found:
        raise UsageError(
            f"{path} holds no exported files", "their names are msmonitor_<pid>_<time>_<rank>.db"
        )
    return found


def _in_order(path: Path) -> tuple[str, str]:
    match = FILE_NAME.match(path.name)
    return (match[2] if match else "", str(path))


def _process_of(path: Path) -> tuple[str, ...]:
    match = FILE_NAME.match(path.name)
    return (str(path.parent), match[1], match[3]) if match else (str(path),)


def _is_database(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(_SQLITE_MAGIC)) == _SQLITE_MAGIC
    except OSError as error:
        raise SinkError(f"can't read {path}: {error.strerror}") from error
