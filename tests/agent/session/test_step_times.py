"""How long steps took, from what the counter has noted."""

from __future__ import annotations

from msmon.agent.session.step_times import StepTimes
from msmon.agent.steps.counter import MOST_ENDED, Source, StepCounter


def step_times(counter: StepCounter) -> StepTimes:
    """Return step times whose wall clock is the monotonic one."""
    return StepTimes(counter, lambda seconds: round(seconds * 1e9))


def ended(counter: StepCounter, *steps: tuple[int, float]) -> None:
    counter.ended.extend(steps)


def test_a_step_lasts_from_the_end_of_the_one_before() -> None:
    counter = StepCounter()
    times = step_times(counter)
    ended(counter, (1, 10.0), (2, 10.5), (3, 12.0))
    spans = times.take()
    assert [(span.number, span.start_ns, span.end_ns) for span in spans] == [
        (2, 10_000_000_000, 10_500_000_000),
        (3, 10_500_000_000, 12_000_000_000),
    ]
    ended(counter, (4, 12.25))
    assert [span.number for span in times.take()] == [4]
    assert times.so_far() == {
        "steps": 3,
        "step_total_ns": 2_250_000_000,
        "step_min_ns": 250_000_000,
        "step_max_ns": 1_500_000_000,
    }
    assert times.close()["steps"] == 3
    ended(counter, (5, 13.25))
    times.take()
    assert times.close()["step_total_ns"] == 1_000_000_000
    assert set(times.close().values()) == {0}


def test_steps_that_are_told_together_count_with_their_mean() -> None:
    counter = StepCounter()
    times = step_times(counter)
    ended(counter, (10, 1.0), (20, 3.0))
    assert times.take() == []
    assert list(times.close().values()) == [10, 2_000_000_000, 200_000_000, 200_000_000]


def test_a_number_that_is_set_is_no_step() -> None:
    counter = StepCounter()
    times = step_times(counter)
    counter.advance()
    counter.set(5000)
    counter.advance()
    counter.advance_by(Source.FRAMEWORK, 1, "steps")
    spans = times.take()
    assert [span.number for span in spans] == [5002]
    assert times.so_far()["steps"] == 1


def test_what_was_before_the_recording_does_not_count() -> None:
    counter = StepCounter()
    times = step_times(counter)
    ended(counter, (1, 1.0), (2, 2.0))
    times.begin()
    ended(counter, (3, 3.0), (4, 4.5))
    assert [span.number for span in times.take()] == [4]


def test_the_counter_keeps_the_latest_steps_only() -> None:
    counter = StepCounter()
    for _ in range(MOST_ENDED + 10):
        counter.advance()
    assert len(counter.take_ended()) == MOST_ENDED
    assert counter.take_ended() == []
