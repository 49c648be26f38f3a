"""The verdicts of the demo, from windows as a daemon hands them out."""

from __future__ import annotations

from fixtures.live_windows import LiveJob

from msmon.commands.demo.watching import DemoWatch
from msmon.live.seen import SeenWindow


class Windows:
    """Takes the place of the feed: gives all windows at once."""

    def __init__(self, windows: list[SeenWindow]) -> None:
        self._windows = windows

    def wait(self, timeout_s: float) -> bool:
        return bool(self._windows)

    def poll(self) -> list[SeenWindow]:
        taken, self._windows = self._windows, []
        return taken


def watched(job: LiveJob, duration_s: float) -> DemoWatch:
    watch = DemoWatch(Windows(list(job.windows(duration_s))), round(job.window_s * 1e9))
    watch.take_the_rest()
    return watch


def test_the_slow_rank_is_named_with_its_reasons() -> None:
    watch = watched(LiveJob(slow={2: 1.3}), 120)
    assert watch.slow_ranks == {2}
    first, *reasons = watch.verdict_lines()
    assert first.startswith("slow device: rank 2 (node1, NPU 0) needs 1.30x its peers' time")
    assert any("MatMul 1.30x" in line for line in reasons)
    assert set(watch.totals()) == {0, 1, 2, 3}


def test_nobody_is_blamed_for_nothing() -> None:
    watch = watched(LiveJob(), 120)
    assert watch.slow_ranks == set()
    assert list(watch.verdict_lines()) == ["No rank is to blame for anything."]


def test_a_demo_that_is_too_short_or_has_one_rank_says_so() -> None:
    (line,) = watched(LiveJob(slow={2: 1.3}), 25).verdict_lines()
    assert "too short" in line
    (line,) = watched(LiveJob(ranks=1), 120).verdict_lines()
    assert "--ranks 2" in line
