"""Choosing processes by pid, rank and job."""

from __future__ import annotations

import pytest

from msmon.commands.parameters import parse_job_ids, parse_pids, parse_ranks
from msmon.errors import UsageError


def test_ranks_may_be_repeated_listed_and_given_as_ranges():
    assert parse_ranks(["0,3", "5-7", "3"]) == [0, 3, 5, 6, 7]


def test_nothing_given_selects_nothing():
    assert (parse_ranks([]), parse_pids([]), parse_job_ids([])) == ([], [], [])


@pytest.mark.parametrize(
    "text", ["", "1,", "a", "-1", "3-1", "1-", "1.5", "9" * 400, "0-9999999", "٣", "1--2"]
)
def test_a_bad_rank_is_refused_with_the_option_named(text):
    with pytest.raises(UsageError, match="--rank"):
        parse_ranks([text])


@pytest.mark.parametrize("text", ["0", "-5", "abc", "2147483648", " ", "1 2"])
def test_a_bad_pid_is_refused_with_the_option_named(text):
    with pytest.raises(UsageError, match="--pid"):
        parse_pids([text])


def test_job_ids_are_text():
    assert parse_job_ids(["123_4, 123.batch", "007"]) == ["123_4", "123.batch", "007"]


def test_a_job_id_that_no_message_can_carry_is_refused():
    with pytest.raises(UsageError, match="UTF-8"):
        parse_job_ids(["job\udcff"])
