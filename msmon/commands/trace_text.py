"""What is said of a trace: by ``nputrace --wait`` and by ``status``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NO_STEP_S = 10.0
"""A process without a step for so long is said to make none."""

FINISHED = ("done", "failed", "cancelled")

Row = Mapping[str, Any]


def steps_text(trace: Row) -> str:
    """Return which steps a trace is for: "steps 10 to 11", or nothing when unknown yet."""
    start, stop = trace.get("start_step", -1), trace.get("stop_step", -1)
    if start < 0:
        return ""
    if stop < 0:
        return f"from step {start} on"
    return f"step {start}" if stop == start + 1 else f"steps {start} to {stop - 1}"


def progress_text(row: Row) -> str:
    """Return what the trace of a status row is doing, and whether the process makes steps."""
    trace = row["trace"]
    steps = steps_text(trace)
    text = f"{trace['state']}{', ' + steps if steps else ''}"
    if trace["state"] == "parsing":
        return text
    age_s = row.get("step_age_s", -1.0)
    if age_s < 0:
        return f"{text}; no step seen yet: the trace begins once the process makes steps"
    if age_s > NO_STEP_S:
        return f"{text}; no step seen for {age_s // 10 * 10:.0f} s"
    return text


def outcome_text(trace: Row) -> str:
    """Return how a finished trace ended."""
    captured = trace.get("captured") or ()
    text = str(trace["state"])
    if captured:
        first, last = captured
        text += f", captured step {first}" if first == last else f", captured {first} to {last}"
    return f"{text}: {trace['reason']}" if trace.get("reason") else text


def trace_text(row: Row) -> str:
    """Return what is known of the last trace of a status row; empty when there was none."""
    trace = row.get("trace") or {}
    state = trace.get("state", "idle")
    if state == "idle":
        return ""
    return outcome_text(trace) if state in FINISHED else progress_text(row)
