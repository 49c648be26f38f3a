"""Lists the installed sinks, and parses the option ``--sink NAME:key=value,…``.

Other packages register sinks in the entry-point group ``msmon.sinks``. msmon's own are also listed
here, so that they work without the metadata of an installed package.
"""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points
from typing import Any

from msmon.errors import SinkError, UsageError
from msmon.settings.options import check_fields
from msmon.sinks.base import Sink

GROUP = "msmon.sinks"

BUILT_IN = {
    "jsonl": "msmon.sinks.jsonl.sink:JsonlSink",
    "jsonl-per-kind": "msmon.sinks.jsonl.sink:JsonlPerKindSink",
    "log": "msmon.sinks.log:LogSink",
    "metrics-json": "msmon.sinks.metrics_json:MetricsJsonSink",
    "sqlite": "msmon.sinks.sqlite.sink:SqliteSink",
    "tensorboard": "msmon.sinks.tensorboard.sink:TensorBoardSink",
}

EXPORT_SINKS = {"DB": "sqlite", "Jsonl": "jsonl", "JsonlPerKind": "jsonl-per-kind"}
"""Value of ``--export-type`` → name of the sink that writes it."""


def sink_paths() -> dict[str, str]:
    """Return name → "module:Class" of every installed sink."""
    found: Any = entry_points()
    group = found.select(group=GROUP) if hasattr(found, "select") else found.get(GROUP, ())
    return {**{entry.name: entry.value for entry in group}, **BUILT_IN}


def sink_class(name: str) -> type[Sink]:
    """Return the sink class of this name.

    Raises UsageError for an unknown name and SinkError when its module can't be imported.
    """
    paths = sink_paths()
    if name not in paths:
        raise UsageError(f"unknown output {name!r}", f"installed: {', '.join(sorted(paths))}")
    module, _, attribute = paths[name].partition(":")
    try:
        found: type[Sink] = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise SinkError(f"output {name} can't be loaded: {error}") from error
    return found


def parse_sink_option(text: str) -> tuple[type[Sink], dict[str, Any]]:
    """Parse "NAME" or "NAME:key=value,key=value" into the class and its checked options.

    A value ends at the next ",key=", so that it may hold commas, colons and equals signs.
    Raises UsageError for an unknown name or option, or a value out of range.
    """
    name, _, tail = text.partition(":")
    found = sink_class(name.strip())
    known = {option.name: option for option in found.OPTIONS}
    fields: dict[str, str] = {}
    last = ""
    for part in tail.split(",") if tail else []:
        key, equals, value = part.partition("=")
        if equals and (key.strip() in known or not last):
            last = key.strip()
            fields[last] = value
        elif last:
            fields[last] += "," + part
        else:
            raise UsageError(f"--sink {text!r}: {part!r} has no value", "write key=value")
    unknown = sorted(set(fields) - set(known))
    if unknown:
        raise UsageError(
            f"output {found.NAME} has no option {', '.join(unknown)}",
            f"it has: {', '.join(sorted(known)) or 'none'}",
        )
    defaults = {option.name: option.default for option in found.OPTIONS}
    return found, {**defaults, **check_fields(known, fields)}


def describe_sinks() -> list[tuple[str, str, tuple[str, ...]]]:
    """Return (name, help, option lines) of every installed sink, for ``--sink help``."""
    rows: list[tuple[str, str, tuple[str, ...]]] = []
    for name in sorted(sink_paths()):
        try:
            found = sink_class(name)
        except SinkError as error:
            rows.append((name, error.message, ()))
            continue
        lines = tuple(f"{option.name}={option.metavar}: {option.help}" for option in found.OPTIONS)
        rows.append((name, found.HELP, lines))
    return rows
