"""Where the steps of a rank begin.

Step markers say it: ranges such as "step 12" or "ProfilerStep#12". Where a job has none, an
operator that every rank runs once per step gives the rhythm, for example the optimizer's kernel:
of all operators the rarest that comes at regular intervals. Ranks are then aligned by time, and if
two alignments are equally good, steps can't be told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from msmon.analysis.records import Label, RankRecords, Sort
from msmon.records.batch import Column
from msmon.vocabulary import Vocabulary

FEWEST_STEPS = 3
FEWEST_CALLS = 6
"""Calls that a rhythm needs."""

MOST_CANDIDATES = 8
REGULAR = 0.3
"""Spread of the intervals (MAD / median) of something that comes once a step."""

LONGEST = 3.0
"""What lasts longer than so many usual steps is a pause, such as an evaluation or the time between
two sessions. It is no part of the step before it."""

CLEAR_MATCH = 0.25
"""A shift is clear if steps begin within this share of a step of each other."""


class StepSource(Vocabulary):
    """How the steps are known."""

    MARKERS = "markers"
    INFERRED = "inferred"
    NONE = "none"


@dataclass(frozen=True)
class Steps:
    """Steps of one rank in the order of time; int64 arrays of shape (n,)."""

    numbers: Column
    start_ns: Column
    end_ns: Column


@dataclass(frozen=True)
class JobSteps:
    """The steps of all ranks, by rank. ``anchor`` names the operator they were inferred from."""

    source: StepSource
    by_rank: dict[int, Steps]
    anchor: str = ""
    repeated: int = 0
    """Steps left out because their number had been there before: the job was restarted."""


def steps_of(ranks: Sequence[RankRecords]) -> JobSteps:
    """Return where the steps of each rank begin. Ranks without any are left out."""
    marked = {one.rank: _marked(one) for one in ranks if len(one.steps) >= FEWEST_STEPS}
    if marked:
        kept = sum(len(steps.numbers) for steps in marked.values())
        repeated = sum(len(one.steps) for one in ranks if one.rank in marked) - kept
        return JobSteps(StepSource.MARKERS, marked, repeated=repeated)
    return _inferred(ranks)


def _marked(records: RankRecords) -> Steps:
    """Return the steps of the markers. A number that comes again is left out."""
    table = np.array(records.steps, np.int64)
    ends = _ends(table[:, 1], int(table[-1, 2]))
    first = np.sort(np.unique(table[:, 0], return_index=True)[1])
    return Steps(table[first, 0], table[first, 1], ends[first])


def _ends(start_ns: Column, last_end_ns: int) -> Column:
    """Return when steps end: when the next one begins, unless there is a pause between them."""
    ends = np.append(start_ns[1:], last_end_ns)
    usual = float(np.median(ends - start_ns))
    paused: Column = ends - start_ns > LONGEST * usual
    result: Column = np.where(paused, start_ns + round(usual), ends)
    return result


def _inferred(ranks: Sequence[RankRecords]) -> JobSteps:
    votes: Counter[Label] = Counter()
    for one in ranks:
        votes.update(_candidates(one))
    for label, count in sorted(votes.items(), key=lambda item: -item[1]):
        if count < len(ranks):
            break
        starts = {one.rank: _starts(one, label) for one in ranks}
        if all(_is_regular(times) for times in starts.values()):
            aligned = _aligned(starts)
            if aligned:
                name = f"{label.name} of group {label.group}" if label.group else label.name
                return JobSteps(StepSource.INFERRED, aligned, name)
    return JobSteps(StepSource.NONE, {})


def _candidates(records: RankRecords) -> list[Label]:
    """Return the rarest operators of a rank that come often enough."""
    usable = [
        (count, place)
        for place, count in enumerate(records.counts)
        if count >= FEWEST_CALLS and records.labels[place].sort is not Sort.HOST_CALL
    ]
    return [records.labels[place] for _, place in sorted(usable)[:MOST_CANDIDATES]]


def _starts(records: RankRecords, label: Label) -> Column:
    number = records.labels.index(label)
    found = [chunk["start_ns"][chunk["label"] == number] for chunk in records.chunks()]
    return np.sort(np.concatenate(found))


def _is_regular(starts: Column) -> bool:
    intervals = np.diff(starts)
    middle = float(np.median(intervals))
    return middle > 0 and float(np.median(np.abs(intervals - middle))) <= REGULAR * middle


def _aligned(starts: dict[int, Column]) -> dict[int, Steps]:
    """Number the steps of all ranks alike; empty where it is not clear which belong together."""
    reference = starts[min(starts)]
    period = float(np.median(np.diff(reference)))
    steps = {}
    for rank, times in starts.items():
        offsets = (times - reference[0]) / period - np.arange(len(times))
        shift = round(float(np.median(offsets)))
        common = [place for place in range(len(times)) if 0 <= place + shift < len(reference)]
        if len(common) < FEWEST_STEPS:
            return {}
        apart = np.abs(times[common] - reference[np.array(common) + shift])
        if float(np.median(apart)) > CLEAR_MATCH * period:
            return {}
        numbers = np.arange(len(times)) + shift
        steps[rank] = Steps(numbers, times, _ends(times, int(times[-1]) + round(period)))
    return steps
