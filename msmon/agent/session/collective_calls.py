"""The single collectives of one step, which ranks compare with each other.

A window holds those of one whole step: the step in which the roundest moment of the wall clock
lies, the one that the highest power of two divides. So ranks whose windows begin some seconds apart
choose the same one, whether they count their steps alike or not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from msmon.records.batch import Column, join_columns
from msmon.records.collectives import is_point_to_point
from msmon.records.durations import Label
from msmon.records.windows import cut_name

MOST_CALLS = 16_384
"""Collectives that are remembered, the latest ones."""

MOST_ROWS = 512
"""Collectives of a step that a window holds; of more, the first ones of each group."""

MOST_NAMES = 1024
"""Groups and operations that are told apart."""

MOST_LABELS = 4096
"""Labels whose numbers are remembered."""

MOST_CHARACTERS = 1024
"""Of a label that is remembered."""

MOST_STEPS = 4096

WITHOUT_STEPS_NS = 1_000_000_000
"""Where steps are unknown, the collectives of so long stand for them."""

MOST_SECONDS = 60
"""So far back such a second may lie."""

CALL_DTYPE = np.dtype(
    [
        ("group", "<u2"),
        ("operation", "<u2"),
        ("size_class", "u1"),
        ("number", "<u4"),
        ("start_ns", "<i8"),
        ("end_ns", "<i8"),
    ]
)
"""One row per collective; group and operation index ``CollectiveCalls.texts``."""


class _Part(NamedTuple):
    """Collectives that came together, in the order of their starts."""

    rows: Column
    first_start_ns: int
    last_start_ns: int
    last_end_ns: int


@dataclass(frozen=True)
class StepSpan:
    """A step, and when the training loop began and ended it; wall clock in ns."""

    number: int
    start_ns: int
    end_ns: int

    @property
    def moment_ns(self) -> int:
        """The roundest moment after its start and until its end.

        The highest bit in which both differ is where a higher power of two was passed.
        """
        bit = (self.start_ns ^ self.end_ns).bit_length() - 1
        return self.end_ns >> bit << bit if bit > 0 else self.end_ns


class CollectiveCalls:
    """The latest collectives of a process. Belongs to one thread."""

    def __init__(self) -> None:
        self.texts: dict[str, int] = {}
        """Name of a group or operation, as a window keeps it → its number."""
        self._numbers: dict[Label, tuple[int, int, int]] = {}
        """What the labels that came lately are in a row, so that it is looked up once."""
        self._calls: deque[_Part] = deque()
        self._count = 0
        self._next_number = np.zeros(MOST_NAMES, np.int64)
        """By the number of a group: that of its next collective."""
        self._steps: deque[StepSpan] = deque(maxlen=MOST_STEPS)
        self._told_step = -1
        self.moment_ns = 0
        """The moment of the step that was told last; 0 before the first."""
        self._whole_since_ns = 0
        """Since when no collective has been forgotten."""

    def forget(self) -> None:
        """Begin anew with the collectives; the steps stay."""
        self._calls.clear()
        self._count = 0
        self._next_number[:] = 0

    def add(
        self,
        start_ns: Column,
        end_ns: Column,
        labels: Column,
        names: Sequence[Label],
    ) -> None:
        """Take collectives with usable times, in arrays of shape (n,). Sends and receives are none.

        ``labels`` index ``names``, which are (operation, group, size class).
        """
        table = np.array([self._numbers_of(name) for name in names], np.int64).reshape(-1, 3)
        order = np.argsort(start_ns, kind="stable")
        labels = labels[order]
        known = table[labels, 0] >= 0
        if not known.all():
            order, labels = order[known], labels[known]
        if not len(order):
            return
        rows = np.zeros(len(order), CALL_DTYPE)
        rows["start_ns"], rows["end_ns"] = start_ns[order], end_ns[order]
        for column, name in enumerate(("group", "operation", "size_class")):
            rows[name] = table[labels, column]
        rows["number"] = self._numbered(table[labels, 0]) & 0xFFFFFFFF
        first_ns, last_ns = int(rows["start_ns"][0]), int(rows["start_ns"][-1])
        self._calls.append(_Part(rows, first_ns, last_ns, int(rows["end_ns"].max())))
        self._count += len(rows)
        while self._count - len(self._calls[0].rows) >= MOST_CALLS:
            dropped = self._calls.popleft()
            self._count -= len(dropped.rows)
            self._whole_since_ns = max(self._whole_since_ns, dropped.last_start_ns + 1)

    def _numbered(self, groups: Column) -> Column:
        """Return the number of each collective within its group, from the groups in their order."""
        counts = np.bincount(groups, minlength=MOST_NAMES)
        order = np.argsort(groups.astype(np.uint16), kind="stable")
        firsts = self._next_number - (np.cumsum(counts) - counts)
        numbers = np.empty(len(groups), np.int64)
        numbers[order] = firsts[groups[order]] + np.arange(len(groups))
        self._next_number += counts
        return numbers

    def add_steps(self, steps: Sequence[StepSpan]) -> None:
        """Take steps that have ended, in their order.

        Where the numbers begin anew, say after a checkpoint was loaded, the former are forgotten.
        """
        for step in steps:
            if self._steps and step.number <= self._steps[-1].number:
                self._steps.clear()
                self._told_step = -1
            self._steps.append(step)

    def take(self) -> tuple[int, Column]:
        """Return (step, its collectives) of the step to tell of; ``CALL_DTYPE``, by start.

        The step is -1 where steps are unknown. Without collectives of a whole step there are none.
        """
        none = np.zeros(0, CALL_DTYPE)
        latest_ns = max((part.last_end_ns for part in self._calls), default=0)
        if not self._calls:
            return -1, none
        if self._steps:
            step = self._roundest(latest_ns)
            if step is None:
                return -1, none
            self._told_step, self.moment_ns = step.number, step.moment_ns
            begin_ns, end_ns = step.start_ns, step.end_ns
        else:
            begin_ns = self.moment_ns = self._roundest_second(latest_ns)
            end_ns = begin_ns + WITHOUT_STEPS_NS
        parts = [
            part.rows
            for part in self._calls
            if part.first_start_ns < end_ns and part.last_start_ns >= begin_ns
        ]
        calls = join_columns([none, *parts])
        inside = (calls["start_ns"] >= begin_ns) & (calls["start_ns"] < end_ns)
        chosen = calls.take(np.flatnonzero(inside))
        chosen = chosen.take(np.argsort(chosen["start_ns"], kind="stable"))
        return (self._told_step if self._steps else -1), _first_of_each_group(chosen)

    def _roundest(self, latest_ns: int) -> StepSpan | None:
        """Return the step to tell of, among those whose collectives are all here."""
        whole = [
            step
            for step in self._steps
            if step.number > self._told_step
            and step.start_ns >= self._whole_since_ns
            and step.end_ns <= latest_ns
        ]
        return max(whole, key=lambda step: _roundness(step.moment_ns), default=None)

    def _roundest_second(self, latest_ns: int) -> int:
        """Return the beginning of the second to tell of, where steps are unknown."""
        last = latest_ns // WITHOUT_STEPS_NS - 1
        first = max(self.moment_ns // WITHOUT_STEPS_NS + 1, last - MOST_SECONDS)
        return WITHOUT_STEPS_NS * max(range(min(first, last), last + 1), key=_roundness)

    def _numbers_of(self, label: Label) -> tuple[int, int, int]:
        """Return the numbers of a label; -1 for sends, receives and names beyond the bound."""
        found = self._numbers.get(label)
        if found is None:
            operation, group, size_class = label
            found = self._new_numbers(cut_name(operation), cut_name(group), size_class)
            if len(self._numbers) >= MOST_LABELS:
                self._numbers.clear()
            if len(operation) + len(group) <= MOST_CHARACTERS:
                self._numbers[label] = found
        return found

    def _new_numbers(self, operation: str, group: str, size_class: int) -> tuple[int, int, int]:
        if is_point_to_point(operation):
            return -1, -1, -1
        if len(self.texts) > MOST_NAMES - 2 and not {operation, group} <= self.texts.keys():
            return -1, -1, -1
        group_number = self.texts.setdefault(group, len(self.texts))
        return group_number, self.texts.setdefault(operation, len(self.texts)), min(size_class, 63)


def _roundness(number: int) -> int:
    """Return the highest power of two that divides a number."""
    return number & -number


def _first_of_each_group(calls: Column) -> Column:
    """Return at most ``MOST_ROWS`` collectives: of each group the first ones, as many of each."""
    if len(calls) <= MOST_ROWS:
        return calls
    _, group, count = np.unique(calls["group"], return_inverse=True, return_counts=True)
    shares = np.arange(1, MOST_ROWS + 1)
    taken = np.minimum(count[None, :], shares[:, None]).sum(axis=1)
    share = int(shares[taken <= MOST_ROWS].max(initial=0))
    place = np.empty(len(calls), np.int64)
    order = np.argsort(group, kind="stable")
    place[order] = np.arange(len(calls)) - np.repeat(np.cumsum(count) - count, count)
    return calls.take(np.flatnonzero(place < share))
