"""The account of a session: its numbers add up, whatever was lost."""

from __future__ import annotations

import pytest

from msmon.accounts import OutputAccount, recorded_account, sent, written_account
from msmon.sessions import Counts


@pytest.mark.parametrize(
    ("drops", "text"),
    [
        ({}, "100 records recorded = 90 sent + 10 filtered out"),
        (
            {"slots": 20, "uplink": 30},
            "120 records recorded = 60 sent + 10 filtered out + 50 dropped (slots 20, uplink 30)",
        ),
        (
            {"decode": None},
            "100 records recorded = 90 sent + 10 filtered out, "
            "and an unknown number dropped (decode)",
        ),
        (
            {"uplink": None, "windows": None},
            "100 records recorded = 90 sent + 10 filtered out, "
            "and an unknown number dropped (uplink); an unknown number missing in windows",
        ),
        (
            {"windows": 40, "open": 2, "early": 3},
            "100 records recorded = 90 sent + 10 filtered out; "
            "3 older than the session left out; 2 ranges still open; 40 missing in windows",
        ),
    ],
)
def test_what_was_recorded_was_sent_filtered_out_or_dropped(drops, text):
    counts = Counts({"Kernel": 70, "API": 30}, {"Kernel": 60, "API": 30}, drops=drops)
    assert recorded_account(counts, shipped=True) == text
    assert f"{sent(counts)} sent" in text


def test_where_only_windows_are_sent_a_lost_window_is_a_loss():
    counts = Counts({"Kernel": 70}, {"Kernel": 60}, drops={"windows": 25, "slots": 5})
    assert recorded_account(counts, shipped=False) == (
        "75 records recorded = 35 in windows + 10 filtered out + 30 dropped (windows 25, slots 5)"
    )


@pytest.mark.parametrize(
    ("account", "text"),
    [
        (OutputAccount("jsonl", 90), "jsonl: 90 written"),
        (
            OutputAccount("jsonl", 50, {"sink": 30, "disk": 10, "windows": 70}),
            "jsonl: 50 written + 40 dropped (sink 30, disk 10)",
        ),
        (OutputAccount("jsonl", 50), "jsonl: 50 written + 40 not written yet"),
        (OutputAccount("jsonl", 50, continued=True), "jsonl: 50 written + 40 written before"),
        (
            OutputAccount("jsonl", 90, {"sink": None}),
            "jsonl: 90 written, and an unknown number dropped (sink)",
        ),
    ],
)
def test_what_was_sent_was_written_or_dropped(account, text):
    assert written_account(account, 90) == text
