"""The explanation of "no data": the first stage that runs dry is named."""

from __future__ import annotations

import pytest
from fixtures.rows import status_row

from msmon.diagnosis.data import no_data, stages
from msmon.diagnosis.finding import Level

DELIVERING = {
    "rank": 0,
    "pid": 9,
    "session_id": "s",
    "settings": {"kinds": "Kernel", "filter": "Kernel:MatMul", "log_file": "/data"},
    "received": {"Kernel": 100},
    "kept": {"Kernel": 40},
    "untimed": {},
    "drops": {"uplink": 0},
    "files": ["/data/a.db"],
    "flush_age_s": 0.4,
}


def finding(place, find, **changed):
    place.answer({**DELIVERING, **changed})
    return find(no_data)


def test_a_session_that_delivers_shows_its_stages(place, find) -> None:
    found = finding(place, find)
    assert found.level is Level.OK
    assert "last flush 0.4 s ago, received 100" in found.details[0]
    assert "filter 'Kernel:MatMul' matches 40 of 100" in found.details[0]


def test_ranges_open_at_a_stop_are_no_trouble(place, find) -> None:
    found = finding(place, find, drops={"open": 3})
    assert found.level is Level.OK
    assert "dropped open 3" in found.details[0]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"kept": {}}, "the filter 'Kernel:MatMul' matches 0 of 100 records"),
        ({"received": {}, "kept": {}}, "MSPTI reported no record of Kernel"),
        ({"received": {}, "kept": {}, "flush_age_s": 30.0}, "MSPTI was last flushed 30.0 s ago"),
        (
            {"received": {}, "kept": {}, "settings": {"kinds": "Marker"}},
            "only markers are collected and the job emits none",
        ),
        ({"received": {}, "kept": {}, "step_age_s": 99.0}, "the last step ended 99 s ago"),
        ({"untimed": {"Kernel": 40}}, "no record that was kept has usable times"),
        ({"drops": {"sink": 5, "decode": None}}, "records were dropped at sink, decode"),
        ({"stuck_in": "msptiActivityEnable(Kernel)"}, "waits in msptiActivityEnable(Kernel)"),
        ({"problem": "no\nlibrary"}, "no; library"),
        ({"unavailable_kinds": {"MemCpy": "needs LD_PRELOAD"}}, "MemCpy (needs LD_PRELOAD)"),
        ({"settings": {"kinds": "Kernel"}}, "goes nowhere"),
    ],
)
def test_the_first_dry_stage_is_named(place, find, changed, said: str) -> None:
    found = finding(place, find, **changed)
    assert found.level is Level.WARN
    assert said in found.details[0]


def test_an_output_in_trouble_is_named(place, find) -> None:
    place.answer(DELIVERING, sinks=[{"name": "jsonl", "problem": "disk full"}])
    assert "output jsonl: disk full" in find(no_data).details[0]


LOST = {"rank": 3, "pid": 7928, "session_id": "t", "state": "lost", "last_seen_s": 10.2}


def test_a_lost_process_has_no_session_that_delivers(place, find) -> None:
    place.answer(DELIVERING, {**LOST, "received": {"Kernel": 5}, "kept": {"Kernel": 5}})
    found = find(no_data)
    assert (found.level, found.text) == (Level.OK, "the one session delivers")
    assert found.details[1:] == (
        "rank 3 pid 7928: lost while it was monitored; last heard of 10 s ago",
    )


def test_a_lost_process_is_not_explained_by_a_dry_stage(place, find) -> None:
    place.answer(DELIVERING, {**LOST, "step_age_s": 99.0})
    found = find(no_data)
    assert found.level is Level.OK
    assert not any("MSPTI" in line for line in found.details[1:])


def test_what_said_goodbye_is_left_out(place, find) -> None:
    place.answer({**DELIVERING, "state": "ended"})
    found = find(no_data)
    assert "no session runs" in found.text
    assert found.details == ()


def test_unknown_settings_leave_no_gap_in_the_reason(place, find) -> None:
    found = finding(place, find, settings=None, received={}, kept={}, step_age_s=99.0)
    assert "MSPTI reported no record, and the last step" in found.details[0]
    assert "kinds not known" in found.details[1]


def test_no_session_is_said(place, find) -> None:
    place.answer({"session_id": ""})
    assert "no session runs" in find(no_data).text


def test_an_unknown_number_of_drops_is_unknown() -> None:
    assert "dropped decode unknown" in stages(
        status_row(**{**DELIVERING, "drops": {"decode": None}})
    )
