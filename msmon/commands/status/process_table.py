"""What ``msmon status`` draws: the table of processes in 80 columns, the notes below it,
and the details of one process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from msmon.bus.rows import DaemonRow, OrderRow, OutputRow, StatusRow
from msmon.bus.words import GONE, ProcessState
from msmon.commands.asking.answers import (
    in_rank_order,
    not_collected,
    process_name,
    sentence,
    terminal_safe,
)
from msmon.commands.asking.trace_text import trace_text
from msmon.sessions import MonitorSettings, alarming_drops
from msmon.settings.options import MONITOR_OPTION

STATE_STYLES: Mapping[str, str] = {
    ProcessState.MONITORING: "green",
    ProcessState.LOST: "red",
    ProcessState.SILENT: "yellow",
    ProcessState.FAILED: "red",
    ProcessState.TRACING: "cyan",
}

_MAX_PIDS = 8

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
    """Add up drops; "+" where a stage lost an unknown number, "?" if only that.

    Ranges still open at a stop don't count: every normal stop leaves some.
    """
    numbers = alarming_drops(drops).values()
    known = sum(number for number in numbers if number is not None)
    if None in numbers:
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


def settings_text(settings: MonitorSettings) -> str:
    """Return settings in force as the options that would ask for them."""
    parts = []
    for name, option in MONITOR_OPTION.items():
        value = getattr(settings, name)
        if not option.flag.startswith("--") or value is None or value == option.default:
            continue
        text = f"{value:g}" if isinstance(value, float) else str(value)
        quoted = f'"{terminal_safe(text)}"' if set(text) & set(" ;:*") else terminal_safe(text)
        parts.append(f"{option.flag} {quoted}")
    return " ".join(parts)


def daemon_lines(daemon: DaemonRow, verbose: bool = False) -> list[Text]:
    """Return which daemon answered, whether it is unencrypted, and outputs in trouble (or all)."""
    place = f"{terminal_safe(daemon.host)}, pid {daemon.pid}"
    first = Text(f"msmon-daemon {terminal_safe(daemon.version)} on {place}")
    if daemon.insecure:
        first.append("  NOT ENCRYPTED (--insecure)", style="bold red")
    outputs = [sink for sink in daemon.sinks if verbose or sink.problem]
    return [first, *map(_output_line, outputs), *map(_order_line, daemon.orders)]


def _order_line(order: OrderRow) -> Text:
    """Return "order always: --rank 0-7: --kind Kernel: 8 processes follow"."""
    follow = f"{order.following} processes follow" if order.following != 1 else "1 process follows"
    if not order.following and not order.waiting:
        follow = "no process yet"
    parts = [f"order {order.name}", order.selection, *filter(None, [order.options]), follow]
    line = Text(": ".join(map(terminal_safe, parts)))
    if order.left_alone:
        line.append(terminal_safe(f"; it leaves alone {'; '.join(order.left_alone)}"))
    if order.file:
        line.append(terminal_safe(f"; given by {order.file}"))
    if order.waiting:
        line.append(f"; {order.waiting} can't or need not, see below", style="yellow")
    return line


def _output_line(output: OutputRow) -> Text:
    in_force = ", ".join(f"{name}={terminal_safe(text)}" for name, text in output.options.items())
    name = terminal_safe(output.name)
    line = Text(f"output {name} ({in_force}): " if in_force else f"output {name}: ")
    if output.problem:
        return line.append(sentence(output.problem), style="red")
    drops = _drops_by_stage(output.drops) or "nothing"
    written = []
    if output.windows:
        written.append(f"{short_count(output.windows)} windows")
    if output.written or not output.windows:
        written.append(f"{short_count(total(output.written))} records")
    return line.append(f"{' and '.join(written)} written, dropped {drops}")


def live_first(rows: Iterable[StatusRow]) -> list[StatusRow]:
    """Return rows by job, rank, host and pid; those of processes that are gone come last."""
    return sorted(in_rank_order(rows), key=lambda row: row.state in GONE)


def odd_first(rows: Iterable[StatusRow]) -> list[StatusRow]:
    """Return rows in the order in which a page that is too short for all should keep them.

    First come processes with a problem: failed, stuck, anything in red. Then those that
    fell silent or were lost, then the healthy ones, last those that said goodbye.
    """

    def place(row: StatusRow) -> int:
        if row.state in (ProcessState.LOST, ProcessState.SILENT):
            return 1
        if row.state == ProcessState.ENDED:
            return 3
        return 0 if row.state == ProcessState.FAILED or row.stuck_in or row.problem else 2

    return sorted(in_rank_order(rows), key=place)


def process_table(rows: Sequence[StatusRow]) -> Table:
    """Return the table, one row per process in the order given.

    It fits 80 columns; host names shrink first.
    """
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    jobs = len({row.job_id for row in rows}) > 1
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
    for row in rows:
        cells = _cells(row)
        table.add_row(*([elastic(row.job_id)] if jobs else []), *cells)
    return table


def _cells(row: StatusRow) -> list[Text]:
    state = "stuck" if row.stuck_in else terminal_safe(row.state)
    return [
        Text(_known(row.rank)),
        elastic(row.host),
        Text(str(row.pid)),
        Text(_known(row.device)),
        elastic(row.framework or "-"),
        Text(state, style=STATE_STYLES.get(state, "red" if row.problem else "")),
        Text(_known(row.step)),
        Text(short_count(total(row.received))),
        Text(short_count(total(row.kept))),
        Text(dropped_text(row.drops)),
        Text(age_text(row.last_seen_s)),
    ]


def elastic(value: Any) -> Text:
    """Return a cell that is cut where the terminal is too narrow.

    It belongs in a column without ``no_wrap``: rich only narrows those.
    """
    return Text(terminal_safe(value), no_wrap=True, overflow="ellipsis")


def _known(number: int) -> str:
    return str(number) if number >= 0 else "-"


def notes(rows: Sequence[StatusRow]) -> list[Text]:
    """Return lines on settings, drops and problems; equal lines of several ranks are one."""
    grouped: dict[str, list[StatusRow]] = {}
    for row in in_rank_order(rows):
        for line in _facts(row):
            grouped.setdefault(line, []).append(row)
    return [Text(f"{_who(group)}: {line}") for line, group in grouped.items()]


def _facts(row: StatusRow) -> Iterable[str]:
    if row.settings:
        yield settings_text(row.settings) + (
            f" (order {terminal_safe(row.order)})" if row.order else ""
        )
    trace = trace_text(row)
    if trace:
        yield f"trace: {sentence(trace)}"
    drops = alarming_drops(row.drops)
    if drops:
        yield "dropped: " + _drops_by_stage(drops)
    yield from _troubles(row)


def _troubles(row: StatusRow) -> Iterable[str]:
    if row.state == ProcessState.SILENT:
        yield "it runs but says nothing: native code keeps Python's lock, or it is stopped"
    if row.waits_for:
        pids = ", ".join(map(str, row.waits_for[:_MAX_PIDS]))
        more = f" and {len(row.waits_for) - _MAX_PIDS} more" if row.waits_for[_MAX_PIDS:] else ""
        yield (
            f"waits for {pids}{more}, which it has started and which train; commands go to those"
        )
    yield from not_collected(row)
    if row.stuck_in:
        yield f"stuck in {terminal_safe(row.stuck_in)}"
    if row.problem:
        yield sentence(row.problem)
    if row.order_problem:
        yield f"order {terminal_safe(row.order)}: {sentence(row.order_problem)}"


def _drops_by_stage(drops: Mapping[str, int | None]) -> str:
    return ", ".join(f"{s} {'unknown' if n is None else n}" for s, n in drops.items())


def _who(rows: Sequence[StatusRow]) -> str:
    """Name the processes of a note: "rank 2", "ranks 0-3,7", or host:pid without ranks."""
    ranks = [row.rank for row in rows]
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


def details(row: StatusRow) -> list[Text]:
    """Return all that is known of one process, a line per fact."""
    facts = [Text(f"  {label:<9}{text}") for label, text in _detail_lines(row)]
    return [Text(process_name(row), style="bold"), *facts]


def _detail_lines(row: StatusRow) -> Iterable[tuple[str, str]]:
    facts = (
        ("state", row.state),
        ("session", row.session_id),
        ("command", row.command),
        ("job", row.job_id),
        ("library", row.library),
    )
    yield from ((label, terminal_safe(value)) for label, value in facts if value)
    yield "step", _step_text(row)
    if row.settings:
        yield "settings", settings_text(row.settings)
    if row.order:
        yield "order", terminal_safe(row.order)
    yield from _trace_lines(row)
    for label, counts in (
        ("received", row.received),
        ("kept", row.kept),
        ("untimed", row.untimed),
    ):
        if counts:
            yield label, ", ".join(f"{kind} {number}" for kind, number in counts.items())
    yield "dropped", _drops_by_stage(row.drops) or "nothing"
    yield from (("problem", text) for text in _troubles(row))
    yield from (("file", terminal_safe(path)) for path in row.files)
    if row.cpu_s:
        yield "cost", f"{row.cpu_s:.2f} CPU seconds so far"
    yield "seen", f"{age_text(row.last_seen_s)} ago"


def _step_text(row: StatusRow) -> str:
    if row.step < 0:
        return "none seen"
    counted = terminal_safe(row.trace.steps_are) if row.trace else ""
    text = f"{row.step}, {age_text(row.step_age_s)} ago"
    return f"{text}, counted from {counted}" if counted else text


def _trace_lines(row: StatusRow) -> Iterable[tuple[str, str]]:
    text = trace_text(row)
    if text and row.trace:
        yield "trace", sentence(text)
        yield from (("file", terminal_safe(path)) for path in row.trace.files)
