"""A conversion: choose the output for the sources and move the records."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from msmon.conversion.output import ExportOutput, Output
from msmon.conversion.source import Source
from msmon.conversion.table_outputs import ParquetOutput, WorkbookOutput
from msmon.conversion.trace_output import TraceOutput
from msmon.errors import MsmonError, SinkError, UsageError

FORMATS = ("jsonl", "db", "xlsx", "perfetto", "parquet")
TRACE_NAME = "msmon_trace.json"


@dataclass
class Report:
    """What a conversion did. ``skipped``: parts of the input that could not be read; ``unread``:
    processes of which nothing could; ``left_out``: records without a place in the format."""

    files: list[Path] = field(default_factory=list)
    records: dict[str, int] = field(default_factory=dict)
    skipped: int = 0
    unread: int = 0
    left_out: int = 0
    problems: list[str] = field(default_factory=list)


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
        return TraceOutput(_replaceable(path / TRACE_NAME if path.is_dir() else path, sources))
    single = len(sources) == 1 and not (out is not None and out.is_dir())
    if not single:
        return WorkbookOutput(out or here, single=False)
    path = out or here / sources[0].stem
    named = path if path.suffix.lower() == ".xlsx" else path.with_name(f"{path.name}.xlsx")
    return WorkbookOutput(_replaceable(named, sources), single=True)


def _replaceable(path: Path, sources: Sequence[Source]) -> Path:
    """Return the path of a file to write. Raises UsageError for an input, device or directory."""
    if path.exists() and not path.is_file():
        raise UsageError(f"--out: {path} is no regular file")
    inputs = {item.resolve() for source in sources for item in source.paths}
    if path.resolve() in inputs:
        raise UsageError(f"--out: {path} is an input of this conversion", "name another file")
    return path


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
    else:
        report.unread += 1
    report.skipped += source.skipped
    report.problems += [f"{source.paths[0]}: {problem}" for problem in source.problems]
