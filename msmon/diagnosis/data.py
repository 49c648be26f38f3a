"""The check that says why a session delivers no data.

A record passes stages: MSPTI reports it, the filter keeps it, the agent sends it, an output
writes it. The check names the first stage after which nothing is left.
"""

from __future__ import annotations

from collections.abc import Sequence

from msmon.bounds import CountsByKind
from msmon.bus.rows import OutputRow, StatusRow
from msmon.bus.words import GONE, ProcessState
from msmon.diagnosis.finding import Finding, ok, warn
from msmon.diagnosis.surroundings import Surroundings
from msmon.sessions import alarming_drops

LATE_FLUSH_S = 10.0
"""The agent flushes about once a second. A longer silence means that MSPTI is blocked."""


def no_data(surroundings: Surroundings) -> Finding:
    """Report the records of each monitored process by stage, and the first stage without any.

    A process that is gone has no session that could deliver. One that was lost with its session
    is named; one that said goodbye is left out.
    """
    check = "data"
    reply = surroundings.reply
    if reply is None:
        return warn(check, "not known: no daemon answers", "start msmon-daemon")
    monitored = [row for row in reply.status_rows if row.session_id]
    running = [row for row in monitored if row.state not in GONE]
    lost = [
        f"{_name(row)}: lost while it was monitored; last heard of {row.last_seen_s:.0f} s ago"
        for row in monitored
        if row.state == ProcessState.LOST
    ]
    if not running:
        return ok(check, "no session runs; start one with msmon npu-monitor start", *lost)
    sinks = reply.daemon.sinks if reply.daemon else []
    explained = [(row, *explain(row, sinks)) for row in running]
    details = [f"{_name(row)}: {stages(row)}" for row in running]
    dry = [f"{_name(row)}: {reason}; {remedy}" for row, reason, remedy in explained if reason]
    if dry:
        return warn(
            check,
            f"{len(dry)} of {len(running)} sessions deliver less than was asked",
            "see each reason",
            *dry,
            *details,
            *lost,
        )
    number = len(running)
    deliver = "the one session delivers" if number == 1 else f"all {number} sessions deliver"
    return ok(check, deliver, *details, *lost)


def stages(row: StatusRow) -> str:
    """Return one line: the records of a session at each stage, in the order of the stages."""
    expression = row.settings.filter if row.settings else ""
    parts = [
        f"kinds {_kinds(row) or 'not known'}",
        f"last flush {_age(row)}",
        f"received {_total(row.received)}",
    ]
    if expression:
        matched = f"{_total(row.kept)} of {_total(row.received)}"
        parts.append(f"filter {expression!r} matches {matched}")
    parts.append(f"kept {_total(row.kept)}")
    lost = [f"{at} {'unknown' if n is None else n}" for at, n in row.drops.items() if n != 0]
    parts.append(f"dropped {', '.join(lost) or 0}")
    parts.append(f"files {len(row.files)}")
    return ", ".join(parts)


def explain(row: StatusRow, sinks: Sequence[OutputRow]) -> tuple[str, str]:
    """Return (reason, remedy) for a session that loses data; both "" for one that loses none."""
    for stage in (_stuck, _unavailable, _nothing_received, _nothing_kept, _untimed, _dropped):
        reason, remedy = stage(row)
        if reason:
            return reason, remedy
    return _nothing_written(row, sinks)


def _stuck(row: StatusRow) -> tuple[str, str]:
    if row.stuck_in:
        return f"it waits in {row.stuck_in}", "look at the NPU driver; training itself goes on"
    if row.problem:
        return row.problem.replace("\n", "; "), "remove that cause, then start again"
    return "", ""


def _unavailable(row: StatusRow) -> tuple[str, str]:
    refused = row.unavailable_kinds
    if not refused:
        return "", ""
    reasons = ", ".join(f"{kind} ({_first_line(why)})" for kind, why in refused.items())
    return f"not collected: {reasons}", "see the check of LD_PRELOAD; other kinds go on"


def _nothing_received(row: StatusRow) -> tuple[str, str]:
    if _total(row.received):
        return "", ""
    kinds = _kinds(row)
    if row.flush_age_s > LATE_FLUSH_S:
        return f"MSPTI was last flushed {_age(row)}", "look at the NPU driver"
    if kinds == "Marker":
        return (
            "only markers are collected and the job emits none",
            "collect others too: msmon npu-monitor update --kind Marker,Kernel",
        )
    if row.step_age_s > LATE_FLUSH_S:
        return (
            f"MSPTI reported no {kinds or 'record'}, and the last step ended "
            f"{row.step_age_s:.0f} s ago",
            "the job waits or computes on the host",
        )
    return (
        f"MSPTI reported no record of {kinds or 'the kinds that are collected'}",
        "check that the job runs on the NPU, and LD_PRELOAD before CANN 9.0",
    )


def _nothing_kept(row: StatusRow) -> tuple[str, str]:
    received = _total(row.received)
    if _total(row.kept):
        return "", ""
    text = row.settings.filter if row.settings else ""
    return (
        f"the filter {text!r} matches 0 of {received} records",
        'case matters and parts of names count; lift it with --filter ""',
    )


def _untimed(row: StatusRow) -> tuple[str, str]:
    if _total(row.untimed) < _total(row.kept):
        return "", ""
    return "no record that was kept has usable times", "check driver and firmware versions"


def _dropped(row: StatusRow) -> tuple[str, str]:
    lost = alarming_drops(row.drops)
    if not lost:
        return "", ""
    return f"records were dropped at {', '.join(lost)}", "narrow --kind and --filter"


def _nothing_written(row: StatusRow, sinks: Sequence[OutputRow]) -> tuple[str, str]:
    broken = [sink for sink in sinks if sink.problem]
    if broken:
        return f"output {broken[0].name}: {broken[0].problem}", "see the daemon's log"
    if not sinks and not (row.settings and row.settings.log_file):
        return (
            "it is collected and goes nowhere: no --log-file, and the daemon has no --sink",
            "start with --log-file DIRECTORY, or msmon-daemon with --sink",
        )
    return "", ""


def _kinds(row: StatusRow) -> str:
    return row.settings.kinds if row.settings else ""


def _total(counts: CountsByKind) -> int:
    return sum(counts.values())


def _first_line(text: str) -> str:
    return text.partition("\n")[0]


def _age(row: StatusRow) -> str:
    return f"{row.flush_age_s:.1f} s ago" if row.flush_age_s >= 0 else "not yet"


def _name(row: StatusRow) -> str:
    return f"rank {row.rank} pid {row.pid}" if row.rank >= 0 else f"pid {row.pid}"
