"""When a series has changed."""

from __future__ import annotations

import numpy as np

from msmon.insight.baselines import NEVER, SeriesSet


def fed(values, healthy=True) -> SeriesSet:
    series = SeriesSet()
    for number, value in enumerate(values):
        series.add(number, np.array([value]), np.array([healthy]))
    return series


def noise(size: int, spread: float, middle: float = 1.0) -> list[float]:
    return (middle * (1 + spread * np.random.default_rng(3).standard_normal(size))).tolist()


def test_even_noise_of_many_windows_is_no_change():
    assert fed(noise(400, 0.004)).changed_at()[0] == NEVER


def test_a_small_lasting_change_is_found_and_dated():
    series = fed(noise(40, 0.004) + [1.05] * 8)
    assert series.changed_at()[0] in range(39, 42)


def test_one_bad_window_is_not_enough():
    assert fed([*noise(40, 0.004), 3.0]).changed_at()[0] == NEVER


def test_noise_ten_times_as_large_needs_a_larger_change():
    assert fed(noise(40, 0.04) + [1.03] * 8).changed_at()[0] == NEVER
    assert fed(noise(40, 0.04) + [1.3] * 10).changed_at()[0] != NEVER


def test_a_lasting_fault_does_not_become_normal():
    series = fed(noise(40, 0.004) + [1.2] * 200)
    assert series.changed_at()[0] != NEVER


def test_too_few_windows_say_nothing():
    assert fed([1.0] * 5 + [2.0] * 3).changed_at()[0] == NEVER


def test_a_window_without_a_value_changes_nothing():
    series = fed(noise(40, 0.004) + [1.2] * 10 + [float("nan")] * 5)
    assert series.effect[0] == 0.0
