"""Sentences and commands."""

from __future__ import annotations

from msmon.insight.job import Member
from msmon.insight.wording import ranks_text, trace_command


def test_ranks_in_a_row_are_joined():
    assert ranks_text([7, 1, 0, 2, 9, 10, 1]) == "0-2, 7, 9-10"


def test_a_host_of_a_forged_file_is_no_command():
    assert trace_command([Member(3, "node; reboot"), Member(4)]) == (
        "msmon nputrace --host 'node; reboot' --rank 3,4 --iterations 2"
    )
