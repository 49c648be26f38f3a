"""Why there is no data: from the enabled kinds to the files, the first stage that runs dry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msmon.diagnosis.finding import Finding, ok, warn
from msmon.diagnosis.surroundings import Surroundings

Row = Mapping[str, Any]

LATE_FLUSH_S = 10.0
"""The agent flushes about once a second; longer means that MSPTI does not return."""


def no_data(surroundings: Surroundings) -> Finding:
    """What each monitored process collected, kept, lost and wrote; the first stage without data."""
    check = "data"
    reply = surroundings.reply
    if reply is None:
        return warn(check, "not known: no daemon answers", "start msmon-daemon")
    running = [row for row in reply.rows if row.get("session_id")]
    if not running:
        return ok(check, "no session runs; start one with msmon npu-monitor start")
    sinks = list(reply.daemon.get("sinks") or ())
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
        )
    return ok(check, f"all {len(running)} sessions deliver", *details)


def stages(row: Row) -> str:
    """Return the records of one session stage by stage, in the order in which they travel."""
    settings = row.get("settings") or {}
    parts = [
        f"kinds {settings.get('kinds')}",
        f"last flush {_age(row)}",
        f"received {_sum(row, 'received')}",
    ]
    if settings.get("filter"):
        matched = f"{_sum(row, 'kept')} of {_sum(row, 'received')}"
        parts.append(f"filter {settings['filter']!r} matches {matched}")
    parts.append(f"kept {_sum(row, 'kept')}")
    drops = row.get("drops") or {}
    lost = [f"{stage} {'unknown' if n is None else n}" for stage, n in drops.items() if n != 0]
    parts.append(f"dropped {', '.join(lost) or 0}")
    parts.append(f"files {len(row.get('files') or ())}")
    return ", ".join(parts)


def explain(row: Row, sinks: list[Mapping[str, Any]]) -> tuple[str, str]:
    """Return why a session delivers nothing or too little, and what to do; empty if it delivers."""
    for stage in (_stuck, _unavailable, _nothing_received, _nothing_kept, _untimed, _dropped):
        reason, remedy = stage(row)
        if reason:
            return reason, remedy
    return _nothing_written(row, sinks)


def _stuck(row: Row) -> tuple[str, str]:
    if row.get("stuck_in"):
        return f"it waits in {row['stuck_in']}", "look at the NPU driver; training itself goes on"
    if row.get("problem"):
        return str(row["problem"]).replace("\n", "; "), "remove that cause, then start again"
    return "", ""


def _unavailable(row: Row) -> tuple[str, str]:
    refused = row.get("unavailable_kinds") or {}
    if not refused:
        return "", ""
    reasons = ", ".join(f"{kind} ({str(why).splitlines()[0]})" for kind, why in refused.items())
    return f"not collected: {reasons}", "see the check of LD_PRELOAD; other kinds go on"


def _nothing_received(row: Row) -> tuple[str, str]:
    if _sum(row, "received"):
        return "", ""
    flush_age_s = row.get("flush_age_s", -1.0)
    kinds = (row.get("settings") or {}).get("kinds", "")
    if flush_age_s > LATE_FLUSH_S:
        return f"MSPTI was last flushed {_age(row)}", "look at the NPU driver"
    if kinds == "Marker":
        return (
            "only markers are collected and the job emits none",
            "collect others too: msmon npu-monitor update --kind Marker,Kernel",
        )
    if row.get("step_age_s", -1.0) > LATE_FLUSH_S:
        return (
            f"MSPTI reported no {kinds}, and the last step ended {row['step_age_s']:.0f} s ago",
            "the job waits or computes on the host",
        )
    return (
        f"MSPTI reported no record of {kinds}",
        "check that the job runs on the NPU, and LD_PRELOAD before CANN 9.0",
    )


def _nothing_kept(row: Row) -> tuple[str, str]:
    received = _sum(row, "received")
    if _sum(row, "kept"):
        return "", ""
    text = (row.get("settings") or {}).get("filter", "")
    return (
        f"the filter {text!r} matches 0 of {received} records",
        'case matters and parts of names count; lift it with --filter ""',
    )


def _untimed(row: Row) -> tuple[str, str]:
    if _sum(row, "untimed") < _sum(row, "kept"):
        return "", ""
    return "no record that was kept has usable times", "check driver and firmware versions"


def _dropped(row: Row) -> tuple[str, str]:
    drops = row.get("drops") or {}
    lost = [stage for stage, number in drops.items() if number != 0]
    if not lost:
        return "", ""
    return f"records were dropped at {', '.join(lost)}", "narrow --kind and --filter"


def _nothing_written(row: Row, sinks: list[Mapping[str, Any]]) -> tuple[str, str]:
    broken = [sink for sink in sinks if sink.get("problem")]
    if broken:
        return f"output {broken[0].get('name')}: {broken[0]['problem']}", "see the daemon's log"
    if not sinks and not (row.get("settings") or {}).get("log_file"):
        return (
            "it is collected and goes nowhere: no --log-file, and the daemon has no --sink",
            "start with --log-file DIRECTORY, or msmon-daemon with --sink",
        )
    return "", ""


def _sum(row: Row, field: str) -> int:
    return sum((row.get(field) or {}).values())


def _age(row: Row) -> str:
    age_s = row.get("flush_age_s", -1.0)
    return f"{age_s:.1f} s ago" if age_s >= 0 else "not yet"


def _name(row: Row) -> str:
    rank = row.get("rank", -1)
    return f"rank {rank} pid {row.get('pid')}" if rank >= 0 else f"pid {row.get('pid')}"
