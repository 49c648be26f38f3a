"""From ``--to`` and ``--out`` to the target that writes it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msmon.conversion.sources.source import Source
from msmon.conversion.targets.parquet import ParquetTarget
from msmon.conversion.targets.session_files import SessionFilesTarget
from msmon.conversion.targets.target import Target, require_replaceable
from msmon.conversion.targets.trace import TraceTarget
from msmon.conversion.targets.workbooks import WorkbookTarget

FORMATS = ("jsonl", "db", "xlsx", "perfetto", "parquet")
TRACE_NAME = "msmon_trace.json"


def choose_target(target_format: str, out: Path | None, sources: Sequence[Source]) -> Target:
    """Return the target for one of ``FORMATS``.

    ``out`` is a file for a trace and for the workbook of a single source, otherwise a
    directory (default: the current one). Raises UsageError, SinkError or OSError.
    """
    here = Path(".")
    inputs = [path for source in sources for path in source.paths]
    if target_format in ("db", "jsonl"):
        return SessionFilesTarget("DB" if target_format == "db" else "Jsonl", out or here)
    if target_format == "parquet":
        return ParquetTarget(out or here, inputs)
    if target_format == "perfetto":
        path = out or here / TRACE_NAME
        path = path / TRACE_NAME if path.is_dir() else path
        return TraceTarget(require_replaceable(path, inputs))
    single = len(sources) == 1 and not (out is not None and out.is_dir())
    if not single:
        return WorkbookTarget(out or here, single=False, inputs=inputs)
    path = out or here / sources[0].stem
    named = path if path.suffix.lower() == ".xlsx" else path.with_name(f"{path.name}.xlsx")
    return WorkbookTarget(require_replaceable(named, inputs), single=True, inputs=inputs)
