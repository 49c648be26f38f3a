"""What is said of a trace: by ``nputrace --wait`` and by ``status``."""

from __future__ import annotations

from msmon.bus.rows import StatusRow, TraceRow
from msmon.bus.words import FINISHED, TraceState

NO_STEP_S = 10.0
"""A process without a step for so long is said to make none."""


def steps_text(trace: TraceRow) -> str:
    """Return which steps a trace is for: "steps 10 to 11", or nothing when unknown yet."""
    start, stop = trace.start_step, trace.stop_step
    if start < 0:
        return ""
    if stop < 0:
        return f"from step {start} on"
    return f"step {start}" if stop == start + 1 else f"steps {start} to {stop - 1}"


def progress_text(trace: TraceRow, step_age_s: float) -> str:
    """Return what a trace is doing, and whether its process makes steps.

    ``step_age_s``: seconds since the last step; negative when none was seen.
    """
    steps = steps_text(trace)
    text = f"{trace.state}{', ' + steps if steps else ''}"
    if trace.state == TraceState.PARSING:
        return text
    if step_age_s < 0:
        return f"{text}; no step seen yet: the trace begins once the process makes steps"
    if step_age_s > NO_STEP_S:
        return f"{text}; no step seen for {step_age_s // 10 * 10:.0f} s"
    return text


def outcome_text(trace: TraceRow) -> str:
    """Return how a finished trace ended."""
    text = str(trace.state)
    if trace.captured:
        first, last = trace.captured[0], trace.captured[-1]
        steps = f"step {first}" if first == last else f"steps {first} to {last}"
        text += f", captured {steps}"
    return f"{text}: {trace.reason}" if trace.reason else text


def trace_text(row: StatusRow) -> str:
    """Return what is known of the last trace of a status row; empty when there was none."""
    trace = row.trace
    if trace is None or trace.state == TraceState.IDLE:
        return ""
    return outcome_text(trace) if trace.state in FINISHED else progress_text(trace, row.step_age_s)
