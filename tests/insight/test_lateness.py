"""Chance and lateness."""

from __future__ import annotations

import pytest

from msmon.insight.lateness import chance_of


@pytest.mark.parametrize(
    ("hits", "tries", "probability", "chance"),
    [(0, 5, 0.5, 1.0), (5, 5, 0.5, 1 / 32), (1, 2, 0.5, 0.75), (3, 3, 0.25, 1 / 64)],
)
def test_the_chance_of_so_many_votes(hits, tries, probability, chance):
    assert chance_of(hits, tries, probability) == pytest.approx(chance)


def test_ten_thousand_votes_do_not_overflow():
    assert chance_of(9000, 10_000, 0.125) == pytest.approx(0.0, abs=1e-12)
    assert chance_of(1000, 10_000, 0.125) == pytest.approx(1.0, abs=1e-6)
