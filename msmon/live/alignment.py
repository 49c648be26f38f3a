"""Which collectives of two ranks are the same, when each rank counts its own.

The order of collectives within a group is the same on all its ranks. But each rank counts them from
the moment when its session began, and those moments differ. So between two ranks there is a shift:
collective 1,017 of rank 0 may be number 998 of rank 1. It stays the same as long as both sessions
last and nothing is lost.

The shift shows in two ways. Operation and size must agree at each place; and all ranks leave a
collective together, so the ends keep one distance from each other, the difference of the clocks.
Where two shifts are equally good nothing is matched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from msmon.records.batch import Column

REACH = 64
"""How far from the shift that the clocks suggest others are tried."""

LEAST_OVERLAP = 0.75
"""Share of the shorter row of collectives that a shift must bring together."""

LEAST_AGREEMENT = 0.98
"""Share of those whose operation and size must agree."""

ALIKE_FACTOR = 1.5
ALIKE_NS = 50_000
"""Shifts whose ends scatter by no more than so many times the least scatter, and so many ns, are
equally good; then the one with the smallest difference of the clocks is taken."""

STEADY_NS = 200_000
"""A shift found earlier is looked for again once the clocks seem to differ by so much more or less:
a collective may have been lost."""

CLEAR_FACTOR = 2.0
CLEAR_NS = 100_000
"""It must be that much smaller than the next one."""


@dataclass(frozen=True)
class Calls:
    """Collectives of one rank in one group, in their order. Arrays of shape (n,), int64.

    ``what`` stands for operation and size: two collectives with different ones are not the same.
    """

    number: Column
    what: Column
    end_ns: Column


@dataclass(frozen=True)
class _Shift:
    """``reference number = number + shift``; ``clocks_ns`` is how much later the ends are there."""

    shift: int
    clocks_ns: float = 0.0


class GroupAlignment:
    """The shifts of the ranks of one group. Belongs to one thread.

    Keys stand for sessions of ranks. A number plus its shift is the place of the collective in the
    group, the same for all.
    """

    def __init__(self) -> None:
        self._reference = ""
        self._found: dict[str, _Shift] = {}
        """Session → its shift from the reference."""
        self._base = 0
        """Shift of the reference itself."""

    def shifts(self, calls: Mapping[str, Calls]) -> dict[str, int]:
        """Return the shift of each session whose collectives can be told, those of ``calls``.

        What is not in ``calls`` is forgotten.
        """
        self._found = {key: found for key, found in self._found.items() if key in calls}
        filled = [key for key, one in calls.items() if len(one.number)]
        if not filled:
            return {}
        if self._reference not in filled or self._reference not in self._found:
            self._refer_to(
                max(filled, key=lambda key: (key in self._found, len(calls[key].number)))
            )
        reference = calls[self._reference]
        for key in filled:
            earlier = self._found.get(key)
            if key == self._reference or (earlier and _holds(reference, calls[key], earlier)):
                continue
            self._found.pop(key, None)
            found = _search(reference, calls[key])
            if found is not None:
                self._found[key] = found
        return {key: self._base + self._found[key].shift for key in filled if key in self._found}

    def _refer_to(self, key: str) -> None:
        """Compare with this session from now on; the shifts stay what they are."""
        moved = self._found.get(key)
        if moved is None:  # none of those that have anything was known
            self._found, self._base, moved = {}, 0, _Shift(0)
        self._found = {
            other: _Shift(found.shift - moved.shift, found.clocks_ns - moved.clocks_ns)
            for other, found in self._found.items()
        }
        self._found[key] = _Shift(0)
        self._base += moved.shift
        self._reference = key


def _holds(reference: Calls, calls: Calls, earlier: _Shift) -> bool:
    """Whether a shift found earlier still fits; it does if there is nothing to compare."""
    place, found = _places(reference, calls.number + earlier.shift)
    if not found.any():
        return True
    place = place[found]
    agree = (reference.what[place] == calls.what[found]).mean()
    clocks_ns = np.median(reference.end_ns[place] - calls.end_ns[found])
    return bool(agree >= LEAST_AGREEMENT and abs(clocks_ns - earlier.clocks_ns) <= STEADY_NS)


def _places(reference: Calls, number: Column) -> tuple[Column, Column]:
    """Return where the numbers are in the reference, and which of them are there."""
    place = np.minimum(np.searchsorted(reference.number, number), len(reference.number) - 1)
    return place, reference.number[place] == number


def _search(reference: Calls, calls: Calls) -> _Shift | None:
    """Return the shift that fits; None where none does, or more than one."""
    nearest = np.searchsorted(reference.end_ns, calls.end_ns)
    nearest = np.minimum(nearest, len(reference.number) - 1)
    start = int(np.median(reference.number[nearest] - calls.number))
    shifts = start + np.arange(-REACH, REACH + 1)
    place, found = _places(reference, calls.number[None, :] + shifts[:, None])
    overlap = found.sum(axis=1)
    agree = (found & (reference.what[place] == calls.what)).sum(axis=1)
    least = LEAST_OVERLAP * min(len(reference.number), len(calls.number))
    fits = np.flatnonzero((overlap >= max(1, least)) & (agree >= LEAST_AGREEMENT * overlap))
    if not len(fits):
        return None
    apart = np.where(found[fits], reference.end_ns[place[fits]] - calls.end_ns, np.nan)
    clocks = np.nanmedian(apart, axis=1)
    scatter = np.nanmedian(np.abs(apart - clocks[:, None]), axis=1)
    alike = np.flatnonzero(scatter <= ALIKE_FACTOR * scatter.min() + ALIKE_NS)
    order = alike[np.argsort(np.abs(clocks[alike]), kind="stable")]
    if len(order) > 1:
        best, next_best = np.abs(clocks[order[:2]]).tolist()
        if next_best < CLEAR_FACTOR * best + CLEAR_NS:
            return None
    return _Shift(int(shifts[fits[order[0]]]), float(clocks[order[0]]))
