"""Ranges in the order of their ends, as the tracks of a trace need them.

A file holds ranges as they were found complete, one batch after the other: within a batch by
id, and a batch may hold a range that ended before one of the batch before. A track must get the
inner ranges before the outer one, so some events are held back and sorted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from msmon.records.batch import Column, join_columns
from msmon.records.layout import EVENT_TEXT_FIELDS
from msmon.records.markers import MarkerEvents

HELD_EVENTS = 1 << 16
"""Events held back. Buffers of activity records overtake each other by far less."""


class InOrderOfEnds:
    """Holds the latest events and gives on the others, sorted by end, inner ranges first."""

    def __init__(self) -> None:
        self._held: list[MarkerEvents] = []
        self._count = 0

    def add(self, events: MarkerEvents) -> Iterator[MarkerEvents]:
        """Take events; yield those that ended earliest, once there are too many."""
        if not len(events):
            return
        self._held.append(events)
        self._count += len(events)
        if self._count > 2 * HELD_EVENTS:
            ready = _sorted(self._held)
            split = self._count - HELD_EVENTS
            self._held = [MarkerEvents(ready.events[split:], ready.strings)]
            self._count = HELD_EVENTS
            yield MarkerEvents(ready.events[:split], ready.strings)

    def take_all(self) -> Iterator[MarkerEvents]:
        """Yield what is held."""
        if self._held:
            yield _sorted(self._held)
        self._held, self._count = [], 0


def _sorted(parts: Sequence[MarkerEvents]) -> MarkerEvents:
    """Return the events of all parts by end, those that start last first among equal ends."""
    events, strings = _joined(parts)
    latest_first = ~events["start_ns"]
    return MarkerEvents(events.take(np.lexsort((latest_first, events["end_ns"]))), strings)


def _joined(parts: Sequence[MarkerEvents]) -> tuple[Column, tuple[str, ...]]:
    """Return the events of all parts with one table of texts."""
    ids: dict[str, int] = {}
    renumbered = []
    for part in parts:
        used = {field: np.unique(part.events[field]) for field in EVENT_TEXT_FIELDS}
        numbers = np.zeros(len(part.strings), np.uint32)
        for place in sorted({place for places in used.values() for place in places.tolist()}):
            numbers[place] = ids.setdefault(part.strings[place], len(ids))
        events = part.events.copy()
        for field in EVENT_TEXT_FIELDS:
            events[field] = numbers[events[field]]
        renumbered.append(events)
    return join_columns(renumbered), tuple(ids)
