"""Choosing processes by pid, rank and job."""

from __future__ import annotations

import pytest

from msmon.bus.codec import decode, encode
from msmon.bus.messages import Selection, StatusRequest
from msmon.commands.asking.parameters import parse_job_ids, parse_pids, parse_ranks
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


@pytest.mark.parametrize("text", ["0-10000", "0-9999,20000", "0-5000,7000-12000"])
def test_more_ranks_than_a_request_carries_are_refused_with_the_bound(text):
    with pytest.raises(UsageError, match="--rank: more than 10000 are named"):
        parse_ranks([text])


def test_overlapping_ranges_count_once():
    assert len(parse_ranks(["0-9999", "0-9999,5"])) == 10_000


def test_more_pids_or_jobs_than_a_request_carries_are_refused():
    numbers = [str(number) for number in range(1, 10_002)]
    with pytest.raises(UsageError, match="--pid: more than 10000"):
        parse_pids([",".join(numbers)])
    with pytest.raises(UsageError, match="--job-id: more than 1000"):
        parse_job_ids(numbers[:1001])


def test_as_many_ranks_as_are_allowed_fit_into_a_request():
    ranks = parse_ranks(["9990000-9999999"])
    assert decode(encode(StatusRequest(Selection(ranks=ranks)))).message.selection.ranks == ranks
