"""When a finding begins and when it is over."""

from __future__ import annotations

from msmon.insight.hysteresis import Finding


def shown(*windows: bool) -> Finding:
    finding = Finding()
    for number, shows in enumerate(windows):
        finding.add(number, shows, 0.5 if shows else 0.0)
    return finding


def test_it_begins_when_three_of_four_windows_show_it_and_counts_from_the_first():
    assert shown(True, True).since is None
    assert shown(True, False, True, True).since == 0
    assert shown(False, True, True, True).since == 1


def test_windows_that_lie_far_apart_do_not_add_up():
    assert shown(True, False, False, True, False, False, True).since is None


def test_it_ends_after_six_windows_well_below_where_it_began():
    assert shown(*[True] * 3, *[False] * 5).since == 0
    assert shown(*[True] * 3, *[False] * 6).since is None


def test_it_ended_with_the_first_of_the_windows_that_no_longer_showed_it():
    assert shown(*[True] * 3, *[False] * 6).until == 3
    assert shown(*[True] * 3, *[False] * 5).until is None


def test_a_window_that_shows_it_again_starts_the_count_anew():
    assert shown(*[True] * 3, *[False] * 5, True, *[False] * 5).since == 0
