"""What has become of a trace, for everybody but the tracer."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from msmon.agent.tracing.backend import Backend
from msmon.agent.tracing.plan import TracePlan
from msmon.bus.words import TraceState


@dataclass(frozen=True)
class TraceProgress:
    """What others may know of the trace: replaced as a whole, never changed.

    ``start_step`` is the first traced step, ``stop_step`` the step after the last one (as
    torch_npu reports them); -1: unknown. ``captured``: first and last step on record.
    """

    state: TraceState = TraceState.IDLE
    trace_id: str = ""
    backend: str = ""
    start_step: int = -1
    stop_step: int = -1
    requested_steps: int = 0
    captured: tuple[int, ...] = ()
    path: str = ""
    files: tuple[str, ...] = ()
    reason: str = ""
    partial: bool = False
    left_out: tuple[str, ...] = ()
    """Options that the backend can't honour."""

    @classmethod
    def of(cls, plan: TracePlan, backend: Backend) -> TraceProgress:
        """Return the progress of a trace that has just been accepted."""
        return cls(
            TraceState.READY,
            plan.trace_id,
            backend.name,
            requested_steps=plan.iterations,
            path=plan.directory,
            left_out=backend.left_out,
        )

    def changed(self, **changes: Any) -> TraceProgress:
        """Return what is known next."""
        return dataclasses.replace(self, **changes)

    def as_fields(self) -> dict[str, Any]:
        """Return plain values for the wire."""
        fields = {**dataclasses.asdict(self), "state": self.state.value}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in fields.items()
        }
