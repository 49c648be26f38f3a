"""What ``msmon status`` draws: the table of processes in 80 columns, the notes below it,
and the details of one process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from msmon.commands.answers import (
    in_rank_order,
    not_collected,
    process_name,
    sentence,
    terminal_safe,
)
from msmon.commands.trace_text import trace_text
from msmon.settings.options import MONITOR_OPTION

Row = Mapping[str, Any]

STATE_STYLES = {"monitoring": "green", "lost": "red", "failed": "red", "tracing": "cyan"}

_UNITS = " kMGTP"


def short_count(number: int) -> str:
    """Return a count in at most five characters: 9999, 12.3k, 4.56M, 789M, 1.23G."""
    if number < 10_000:
        return str(number)
    power = min((len(str(number)) - 1) // 3, len(_UNITS) - 1)
    value = number / 1000**power
    if value >= 999.5 and power < len(_UNITS) - 1:  # would round to four digits
        power, value = power + 1, value / 1000
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{digits}f}{_UNITS[power]}"


def total(counts: Mapping[str, int]) -> int:
    """Add up counts per kind."""
    return sum(counts.values())


def dropped_text(drops: Mapping[str, int | None]) -> str:
    """Add up drops of all stages; "+" where a stage lost an unknown number, "?" if only that."""
    known = sum(number for number in drops.values() if number is not None)
    unknown = any(number is None for number in drops.values())
    if unknown:
        return f"{short_count(known)}+" if known else "?"
    return short_count(known)


def age_text(seconds: float | None) -> str:
    """Return an age in a few characters: "3s", "12m", "5h", "-" when unknown."""
    if seconds is None or seconds < 0:
        return "-"
    if seconds < 100:
        return f"{seconds:.0f}s"
    if seconds < 6000:
        return f"{seconds / 60:.0f}m"
    return f"{seconds / 3600:.0f}h"


def settings_text(settings: Mapping[str, Any]) -> str:
    """Return settings in force as the options that would ask for them."""
    parts = []
    for name, option in MONITOR_OPTION.items():
        value = settings.get(name)
        if not option.flag.startswith("--") or value is None or value == option.default:
            continue
        text = f"{value:g}" if isinstance(value, float) else str(value)
        quoted = f'"{terminal_safe(text)}"' if set(text) & set(" ;:*") else terminal_safe(text)
        parts.append(f"{option.flag} {quoted}")
    return " ".join(parts)


def daemon_lines(daemon: Mapping[str, Any], verbose: bool = False) -> list[Text]:
    """Return which daemon answered, whether it is unencrypted, and outputs in trouble (or all)."""
    place = f"{terminal_safe(daemon.get('host', '?'))}, pid {daemon.get('pid', '?')}"
    first = Text(f"msmon-daemon {terminal_safe(daemon.get('version', '?'))} on {place}")
    if daemon.get("insecure"):
        first.append("  NOT ENCRYPTED (--insecure)", style="bold red")
    outputs = [sink for sink in daemon.get("sinks") or () if verbose or sink.get("problem")]
    return [first, *map(_output_line, outputs)]


def _output_line(sink: Mapping[str, Any]) -> Text:
    options = sink.get("options") or {}
    in_force = ", ".join(f"{name}={terminal_safe(value)}" for name, value in options.items())
    name = terminal_safe(sink.get("name", "?"))
    line = Text(f"output {name} ({in_force}): " if in_force else f"output {name}: ")
    if sink.get("problem"):
        return line.append(sentence(sink["problem"]), style="red")
    drops = _drops_by_stage(sink.get("drops") or {}) or "nothing"
    written = short_count(total(sink.get("written") or {}))
    return line.append(f"{written} records written, dropped {drops}")


def process_table(rows: Sequence[Row]) -> Table:
    """Return the table, one row per process; it fits 80 columns, host names shrink first."""
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    jobs = len({row.get("job_id", "") for row in rows}) > 1
    if jobs:
        table.add_column("JOB")
    table.add_column("RANK", justify="right", no_wrap=True, min_width=4)
    table.add_column("HOST")
    table.add_column("PID", justify="right", no_wrap=True, min_width=7)
    table.add_column("DEV", justify="right", no_wrap=True, min_width=3)
    table.add_column("FRAMEWORK")
    table.add_column("STATE", no_wrap=True, min_width=10)
    for title, width in (("STEP", 5), ("RECORDS", 7), ("KEPT", 5), ("DROPPED", 7), ("SEEN", 4)):
        table.add_column(title, justify="right", no_wrap=True, min_width=width)
    for row in in_rank_order([dict(row) for row in rows]):
        cells = _cells(row)
        table.add_row(*([elastic(row.get("job_id", ""))] if jobs else []), *cells)
    return table


def _cells(row: Row) -> list[Text]:
    state = "stuck" if row.get("stuck_in") else terminal_safe(row.get("state", "?"))
    return [
        Text(_known(row.get("rank"))),
        elastic(row.get("host", "?")),
        Text(str(row.get("pid", "?"))),
        Text(_known(row.get("device"))),
        elastic(row.get("framework") or "-"),
        Text(state, style=STATE_STYLES.get(state, "red" if row.get("problem") else "")),
        Text(_known(row.get("step"))),
        Text(short_count(total(row.get("received") or {}))),
        Text(short_count(total(row.get("kept") or {}))),
        Text(dropped_text(row.get("drops") or {})),
        Text(age_text(row.get("last_seen_s"))),
    ]


def elastic(value: Any) -> Text:
    """Return a cell that is cut where the terminal is too narrow.

    It belongs in a column without ``no_wrap``: rich only narrows those.
    """
    return Text(terminal_safe(value), no_wrap=True, overflow="ellipsis")


def _known(number: Any) -> str:
    return str(number) if isinstance(number, int) and number >= 0 else "-"


def notes(rows: Sequence[Row]) -> list[Text]:
    """Return lines on settings, drops and problems; equal lines of several ranks are one."""
    grouped: dict[str, list[Row]] = {}
    for row in in_rank_order([dict(row) for row in rows]):
        for line in _facts(row):
            grouped.setdefault(line, []).append(row)
    return [Text(f"{_who(group)}: {line}") for line, group in grouped.items()]


def _facts(row: Row) -> Iterable[str]:
    settings = row.get("settings")
    if settings:
        yield settings_text(settings)
    trace = trace_text(row)
    if trace:
        yield f"trace: {sentence(trace)}"
    drops = {stage: n for stage, n in (row.get("drops") or {}).items() if n != 0}
    if drops:
        yield "dropped: " + _drops_by_stage(drops)
    yield from _troubles(row)


def _troubles(row: Row) -> Iterable[str]:
    yield from not_collected(row)
    if row.get("stuck_in"):
        yield f"stuck in {terminal_safe(row['stuck_in'])}"
    if row.get("problem"):
        yield sentence(row["problem"])


def _drops_by_stage(drops: Mapping[str, int | None]) -> str:
    return ", ".join(f"{s} {'unknown' if n is None else n}" for s, n in drops.items())


def _who(rows: Sequence[Row]) -> str:
    """Name the processes of a note: "rank 2", "ranks 0-3,7", or host:pid without ranks."""
    ranks = [row.get("rank", -1) for row in rows]
    if len(rows) == 1 or min(ranks) < 0 or len(set(ranks)) < len(ranks):
        names = [process_name(row) for row in rows]
        return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    return f"ranks {format_ranks(ranks)}"


def format_ranks(ranks: Sequence[int]) -> str:
    """Return "0-3,7" for sorted ranks 0, 1, 2, 3, 7, as ``--rank`` reads it."""
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and rank == spans[-1][-1] + 1:
            spans[-1][1:] = [rank]
        else:
            spans.append([rank])
    return ",".join("-".join(map(str, span)) for span in spans)


def details(row: Row) -> list[Text]:
    """Return all that is known of one process, a line per fact."""
    facts = [Text(f"  {label:<9}{text}") for label, text in _detail_lines(row)]
    return [Text(process_name(row), style="bold"), *facts]


def _detail_lines(row: Row) -> Iterable[tuple[str, str]]:
    facts = (
        ("state", row.get("state")),
        ("session", row.get("session_id")),
        ("command", row.get("command")),
        ("job", row.get("job_id")),
        ("library", row.get("library")),
    )
    yield from ((label, terminal_safe(value)) for label, value in facts if value)
    step, age = row.get("step", -1), row.get("step_age_s", -1.0)
    yield "step", f"{step}, {age_text(age)} ago" if step >= 0 else "none seen"
    if row.get("settings"):
        yield "settings", settings_text(row["settings"])
    trace = trace_text(row)
    if trace:
        yield "trace", sentence(trace)
        yield from (("file", terminal_safe(path)) for path in row["trace"].get("files") or ())
    for label in ("received", "kept", "untimed"):
        if row.get(label):
            yield label, ", ".join(f"{kind} {number}" for kind, number in row[label].items())
    if row.get("drops") is not None:
        yield "dropped", _drops_by_stage(row["drops"]) or "nothing"
    yield from (("problem", text) for text in _troubles(row))
    yield from (("file", terminal_safe(path)) for path in row.get("files") or ())
    if row.get("cpu_s"):
        yield "cost", f"{row['cpu_s']:.2f} CPU seconds so far"
    yield "seen", f"{age_text(row.get('last_seen_s'))} ago"
