"""The part of a window that is no column.

It lies apart from :mod:`msmon.records.windows` because the command line reads messages too, and
starts in half the time without numpy.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from msmon.bounds import Count, CountsByKind, Nanoseconds


@dataclass(frozen=True)
class WindowHeader:
    """What is known of a window beside its columns. Times are wall clock ns.

    Agent, wire and sinks share this class: a field added here travels to the sinks by itself.
    """

    index: int
    start_ns: Nanoseconds
    end_ns: Nanoseconds
    step: int = -1
    """Training step at the end of the window; -1: unknown."""
    received: CountsByKind = field(default_factory=dict)
    """Records decoded from buffers, per kind name."""
    kept: CountsByKind = field(default_factory=dict)
    """Records that passed the filter, per kind name."""
    untimed: CountsByKind = field(default_factory=dict)
    """Kept records without usable times, per kind name; they are in no operator."""
    overflow_names: int = 0
    """Distinct names that did not fit the cap and were summed under ``other``."""
    steps: Count = 0
    """Training steps that ended in the window and whose time is known."""
    step_total_ns: Count = 0
    """Time of these steps, from one call of the step to the next; 0: unknown."""
    step_min_ns: Count = 0
    step_max_ns: Count = 0
    digest_step: int = -1
    """The step that the collectives of the window belong to; -1: steps are unknown."""
    digest_ns: Nanoseconds = 0
    """A moment in that step, the same on all ranks; 0 where there are no collectives."""

    def header_fields(self) -> dict[str, Any]:
        """Return the fields of the header alone, by name."""
        return {item.name: getattr(self, item.name) for item in dataclasses.fields(WindowHeader)}
