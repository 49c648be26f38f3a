"""The numbers of collectives follow from the starts of steps, in whatever order those come."""

from __future__ import annotations

import json

import pytest

from msmon.records.kinds import ActivityKind, MarkerFlag, SourceKind
from msmon.sinks.sqlite.collectives import NUMBERS_PER_STEP, CollectiveNumbering

STEP = 7


@pytest.fixture
def start(batch):
    """Make a batch of start records from (source, time, name) of each, all of one id."""

    def make(*ends):
        return batch(
            ActivityKind.Marker,
            [
                {
                    "id": 1,
                    "flag": MarkerFlag.START_WITH_DEVICE,
                    "source_kind": source,
                    "timestamp_ns": time_ns,
                    "name": name,
                }
                for source, time_ns, name in ends
            ],
        )

    return make


HOST = (SourceKind.HOST, 100, f"step {STEP}")
DEVICE = (SourceKind.DEVICE, 200, "")


def test_collectives_of_a_step_are_numbered_before_it_has_ended(start):
    numbering = CollectiveNumbering()
    numbering.add_markers(start(HOST))
    assert numbering.numbers(["g", "g"], [150, 160]) == [
        (STEP + 1) * NUMBERS_PER_STEP,
        (STEP + 1) * NUMBERS_PER_STEP + 1,
    ]


@pytest.mark.parametrize("ends", [(HOST, DEVICE), (DEVICE, HOST)])
def test_steps_begin_when_the_device_reaches_them(start, ends):
    numbering = CollectiveNumbering()
    numbering.add_markers(start(*ends))
    assert numbering.numbers(["g", "g"], [150, 250]) == [0, (STEP + 1) * NUMBERS_PER_STEP]


def test_ranges_that_are_no_steps_change_nothing(start):
    numbering = CollectiveNumbering()
    numbering.add_markers(start(HOST))
    numbering.add_markers(start((SourceKind.HOST, 300, "forward")))
    assert numbering.numbers(["g"], [350]) == [(STEP + 1) * NUMBERS_PER_STEP]


def test_no_number_is_given_twice_when_an_earlier_step_comes_late(start):
    numbering = CollectiveNumbering()
    numbering.add_markers(start(HOST))
    numbering.add_markers(start((SourceKind.HOST, 300, f"step {STEP + 1}")))
    first, second = (STEP + 1) * NUMBERS_PER_STEP, (STEP + 2) * NUMBERS_PER_STEP
    assert numbering.numbers(["g", "g"], [150, 350]) == [first, second]
    resumed = CollectiveNumbering()
    resumed.restore(numbering.as_json())
    for later in (numbering, resumed):
        assert later.numbers(["g", "h", "g"], [160, 170, 360]) == [first + 1, first, second + 1]


def test_numbers_kept_by_version_0_1_0_go_on(start):
    kept = json.dumps([{"g": [STEP + 1, 3]}, [[1, STEP]], [[100, STEP]], []])
    numbering = CollectiveNumbering()
    numbering.restore(kept)
    first = (STEP + 1) * NUMBERS_PER_STEP
    assert numbering.numbers(["g", "h"], [150, 160]) == [first + 3, first]
