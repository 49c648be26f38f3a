"""What several daemons say is one answer, in which nothing that failed is hidden."""

from __future__ import annotations

import pytest
from fixtures.rows import answer_row, daemon_row

from msmon.bus.messages import Reply
from msmon.bus.rows import AnswerRow, MissingRow, Row
from msmon.commands.asking.answers import daemons
from msmon.commands.asking.many_daemons import merged
from msmon.errors import DaemonUnreachable

NO_RANK_3 = MissingRow(rank=3, text="no rank 3 is known")


def process(host: str, rank: int, ok: bool = True) -> AnswerRow:
    return answer_row(host=host, pid=1, rank=rank, ok=ok)


def reply(host: str, *rows: Row, outcome: str = "ok", text: str = "") -> Reply:
    return Reply(outcome, text, rows=list(rows), daemon=daemon_row(host=host))


def test_all_say_yes():
    both = merged({"a": reply("a", process("a", 0)), "b": reply("b", process("b", 1))})
    assert (both.outcome, both.text, len(both.rows)) == ("ok", "", 2)
    assert [daemon.host for daemon in daemons(both)] == ["a", "b"]


def test_one_daemon_that_is_away_makes_it_partial():
    away = DaemonUnreachable("no daemon listens there", "start it")
    both = merged({"a": reply("a", process("a", 0)), "b": away})
    assert (both.outcome, both.text) == ("partial", "b: no daemon listens there")
    assert both.next_step == "start it"
    with pytest.raises(DaemonUnreachable):
        merged({"a": away, "b": away})


def test_a_rank_is_missing_only_where_nobody_has_it():
    first = reply("a", process("a", 0), NO_RANK_3, outcome="partial", text="no rank 3 is known")
    nobody = reply("b", NO_RANK_3, outcome="none-matched", text="no rank 3 is known")
    assert merged({"a": first, "b": nobody}).outcome == "partial"
    second = reply("b", process("b", 3))
    assert merged({"a": first, "b": second}).outcome == "ok"
    elsewhere = merged({"a": nobody, "b": second})
    assert (elsewhere.outcome, elsewhere.text) == ("ok", "")


def test_nothing_anywhere_stays_what_it_is():
    empty = reply("a", outcome="none-registered", text="none here")
    both = merged({"a": empty, "b": empty})
    assert (both.outcome, both.text) == ("none-registered", "a: none here; b: none here")
