"""What can't be seen is told when it changes, and not in between."""

from __future__ import annotations

from dataclasses import dataclass, field

from msmon.commands.watch.sight import Changes, JobSight
from msmon.insight.verdict import Abstained

SILENT = "no window of this time has come from it"


@dataclass
class Judged:
    """What of a watched job says what it can't judge."""

    windows: int = 0
    abstained: tuple[Abstained, ...] = ()
    problems: list[str] = field(default_factory=list)


def test_a_text_is_told_when_it_begins_changes_and_is_over() -> None:
    changes = Changes()
    assert list(changes.take({"node3": "gone"})) == [("node3", "gone")]
    assert list(changes.take({"node3": "gone"})) == []
    assert list(changes.take({"node3": "refused"})) == [("node3", "refused")]
    assert list(changes.take({})) == [("node3", "")]
    assert list(changes.take({})) == []


def test_what_comes_and_goes_is_not_told() -> None:
    changes = Changes(settled=3)
    looks = [{"a": "x"}, {}, {"a": "x"}, {"a": "x"}, {"a": "x"}, {}, {"a": "x"}, {}]
    assert [list(changes.take(look)) for look in looks] == [
        *([[]] * 4),
        [("a", "x")],
        *([[]] * 3),
    ]


def test_ranks_that_cant_be_judged_are_told_after_some_windows_once() -> None:
    sight, judged = JobSight(), Judged()
    told = []
    for judged.windows in range(1, 9):
        judged.abstained = (Abstained((5, 6, 7), SILENT),) if judged.windows < 6 else ()
        for _ in range(4):  # looks are more frequent than windows
            told += [(judged.windows, text) for text in sight.take(judged)]
    assert told == [(3, f"can't judge rank 5-7: {SILENT}"), (8, f"no longer so: {SILENT}")]


def test_what_concerns_the_whole_job_names_no_rank() -> None:
    sight, told = JobSight(), []
    for number in range(1, 4):
        judged = Judged(number, (Abstained((), "no steps"),), ["two processes claim rank 0"])
        told += sight.take(judged)
    assert told == ["no steps", "two processes claim rank 0"]
