"""Collectives of two ranks that each count their own."""

from __future__ import annotations

import numpy as np

from msmon.live.alignment import Calls, GroupAlignment

STEP_NS = 800_000_000


def calls_of(
    first: int, count: int, shift: int = 0, clock_ns: int = 0, spacing_ns: int = 4_000_000
) -> Calls:
    """Return collectives of a rank; a step of 100 equal ones ends with a long reduction."""
    place = first + np.arange(count)
    noise = np.random.default_rng(place[0] + shift).normal(0, 30_000, count)
    end_ns = place // 100 * STEP_NS + place % 100 * spacing_ns
    return Calls(
        number=place - shift,
        what=np.where(place % 100 == 99, 2, 1),
        end_ns=(end_ns + noise + clock_ns).astype(np.int64),
    )


def test_a_shift_is_found_and_kept() -> None:
    alignment = GroupAlignment()
    first = alignment.shifts({"a": calls_of(1000, 100), "b": calls_of(1000, 100, shift=37)})
    assert first == {"a": 0, "b": 37}
    later = alignment.shifts({"a": calls_of(2000, 100), "b": calls_of(2000, 100, shift=37)})
    assert later == first


def test_steps_that_were_cut_at_other_places_are_aligned() -> None:
    shifts = GroupAlignment().shifts(
        {"a": calls_of(1000, 100), "b": calls_of(1003, 100, shift=-250, clock_ns=300_000)}
    )
    assert shifts == {"a": 0, "b": -250}


def test_a_clock_that_differs_is_no_hindrance_where_the_operations_tell() -> None:
    shifts = GroupAlignment().shifts(
        {"a": calls_of(1040, 100), "b": calls_of(1040, 100, shift=5, clock_ns=9_000_000)}
    )
    assert shifts == {"a": 0, "b": 5}


def test_equal_collectives_between_clocks_that_differ_are_not_guessed() -> None:
    shifts = GroupAlignment().shifts(
        {"a": calls_of(1000, 60), "b": calls_of(1000, 60, shift=5, clock_ns=1_900_000)}
    )
    assert shifts == {"a": 0}


def test_a_single_collective_per_step_is_enough() -> None:
    shifts = GroupAlignment().shifts({"a": calls_of(1000, 1), "b": calls_of(1000, 1, shift=12)})
    assert shifts == {"a": 0, "b": 12}


def test_a_lost_collective_is_noticed() -> None:
    alignment = GroupAlignment()
    alignment.shifts({"a": calls_of(1000, 100), "b": calls_of(1000, 100, shift=37)})
    shifts = alignment.shifts({"a": calls_of(2000, 100), "b": calls_of(2000, 100, shift=39)})
    assert shifts == {"a": 0, "b": 39}


def test_a_session_that_has_nothing_to_compare_keeps_its_shift() -> None:
    alignment = GroupAlignment()
    alignment.shifts({"a": calls_of(1000, 100), "b": calls_of(1000, 100, shift=37)})
    apart = alignment.shifts({"a": calls_of(2000, 100), "b": calls_of(2400, 100, shift=37)})
    assert apart == {"a": 0, "b": 37}


def test_what_is_gone_is_forgotten() -> None:
    alignment = GroupAlignment()
    alignment.shifts({"a": calls_of(1000, 100), "b": calls_of(1000, 100, shift=37)})
    assert alignment.shifts({"b": calls_of(2000, 100, shift=37)}) == {"b": 37}
    assert alignment.shifts({}) == {}
    assert alignment.shifts({"b": calls_of(3000, 100, shift=37)}) == {"b": 0}
