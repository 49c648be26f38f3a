"""What keys change."""

from __future__ import annotations

import pytest

from msmon.commands.top.model import ALL_RANKS, Model, RankKey
from msmon.commands.top.screen.drawing import draw
from msmon.commands.top.screen.keys import press
from msmon.commands.top.screen.view import Input, Overlay, View, Wish, opened


def after(model: Model, *keys: str, view: View | None = None, height: int = 24):
    """Return the frame after these keys, from the view with which one begins."""
    frame = draw(model, view or opened(View(), model), 80, height)
    for key in keys:
        pressed = press(frame.view, key, frame.shown)
        frame = draw(model, pressed, 80, height)
    return frame


def ranks(frame) -> list[int]:
    return [row.rank for row in frame.rows]


def test_one_job_is_opened_by_itself_until_somebody_goes_elsewhere(slow_model):
    frame = after(slow_model)
    assert (frame.view.job, frame.view.group, str(frame.view.level)) == ("train", "*", "ranks")
    left = after(slow_model, "escape", "escape").view
    assert left.job is None
    assert opened(left, slow_model).job is None


def test_the_cursor_stays_in_the_table(slow_model):
    assert after(slow_model, "down", "j").view.cursor == RankKey("node1", 1002)
    assert after(slow_model, "up").view.cursor == RankKey("node0", 1000)
    assert after(slow_model, "end").view.place == 7
    assert after(slow_model, "G", "down", "pagedown").view.place == 7
    assert after(slow_model, "G", "k", "g").view.place == 0


def test_a_page_scrolls(slow_model):
    frame = after(slow_model, "pagedown", height=12)
    assert 0 < frame.view.place < 7
    assert frame.view.first <= frame.view.place < frame.view.first + frame.height


def test_drill_down_and_back(slow_model):
    start = after(slow_model, "escape", "escape")
    assert str(start.view.level) == "jobs"
    group = after(slow_model, "enter", view=start.view)
    assert (group.view.job, group.view.cursor) == ("train", ALL_RANKS)
    named = after(slow_model, "down", "enter", view=group.view)
    assert named.view.group == "group_1"
    operators = after(slow_model, "down", "down", "down", "enter", view=named.view)
    assert operators.view.rank == RankKey("node1", 1003)
    histogram = after(slow_model, "enter", view=operators.view)
    assert histogram.view.operator.name == "MatMul"
    assert after(slow_model, "enter", view=histogram.view).view == histogram.view
    back = after(slow_model, "backspace", "escape", view=histogram.view)
    assert (back.view.level, back.view.cursor) == ("ranks", RankKey("node1", 1003))


def test_sorting_by_columns_and_back_to_the_order_of_ranks(slow_model):
    last = after(slow_model, "S")
    assert (last.view.order.column, ranks(last)[0]) == ("VERDICT", 3)
    assert last.view.place == 0
    assert ranks(after(slow_model, "S", "s")) == list(range(8))
    work = after(slow_model, *"ssssss")
    assert (work.view.order.column, ranks(work)[0]) == ("WORK", 3)
    assert ranks(after(slow_model, *"ssssssr"))[-1] == 3
    assert ranks(after(slow_model, "s"))[0] == 0
    assert ranks(after(slow_model, "r"))[0] == 7


def test_the_unknown_is_last_in_both_directions(slow_model):
    frame = after(slow_model, "S", "r")
    assert frame.rows[0].verdict
    assert not frame.rows[1].verdict


def test_the_filter_takes_all_keys_until_enter_or_escape(slow_model):
    typed = after(slow_model, "/", *"node1")
    assert (typed.view.input, ranks(typed)) == (Input.FILTER, [2, 3])
    assert ranks(after(slow_model, "backspace", *"3q", view=typed.view)) == []
    kept = after(slow_model, "enter", "down", view=typed.view)
    assert (kept.view.input, ranks(kept), kept.view.place) == (Input.KEYS, [2, 3], 1)
    cleared = after(slow_model, "escape", view=kept.view)
    assert (ranks(cleared), cleared.view.cursor) == (list(range(8)), RankKey("node1", 1003))
    assert len(ranks(after(slow_model, "escape", view=typed.view))) == 8


def test_help_and_verdicts_lie_over_the_table(slow_model):
    frame = after(slow_model, "?")
    assert frame.view.overlay is Overlay.HELP
    assert after(slow_model, "j", "j", "k", view=frame.view).view.scrolled == 1
    assert after(slow_model, "x", view=frame.view).view.overlay is Overlay.NONE
    assert after(slow_model, "v").view.overlay is Overlay.VERDICTS
    assert after(slow_model, "v", "q").view.wish is Wish.QUIT


def test_marks_and_the_question_of_the_trace(slow_model):
    marked = after(slow_model, "m", "down", "m")
    assert marked.view.marked == {
        ("train", RankKey("node0", 1000)),
        ("train", RankKey("node1", 1002)),
    }
    asked = after(slow_model, "T", view=marked.view)
    assert asked.view.input is Input.TRACE
    assert after(slow_model, "y", view=asked.view).view.wish is Wish.TRACE
    refused = after(slow_model, "n", view=asked.view).view
    assert (refused.wish, refused.input) == (Wish.NONE, Input.KEYS)
    assert after(slow_model, "u", view=marked.view).view.marked == frozenset()
    assert after(slow_model, "up", "up", "m", view=marked.view).view.marked != marked.view.marked


def test_without_marks_the_chosen_rank_is_traced(slow_model):
    asked = after(slow_model, "down", "T").view
    assert asked.marked == {("train", RankKey("node0", 1001))}
    inside = after(slow_model, "down", "enter", "T").view
    assert inside.marked == asked.marked


def test_a_trace_needs_a_rank(slow_model):
    frame = after(slow_model, "escape", "T")
    assert frame.view.input is Input.KEYS
    assert "rank" in frame.view.message[0]
    assert after(slow_model, "escape", "m").view.message


@pytest.mark.parametrize("key", [" ", "f"])
def test_freeze_and_go_on(slow_model, key):
    assert after(slow_model, key).view.frozen
    assert not after(slow_model, key, key).view.frozen


def test_leaving_and_keys_without_a_meaning(slow_model):
    assert after(slow_model, "q").view.wish is Wish.QUIT
    assert after(slow_model, "x").view.cursor == RankKey("node0", 1000)


@pytest.mark.parametrize("key", ["down", "enter", "escape", "m", "T", "s", "r", "/", "G", "v"])
def test_keys_on_an_empty_screen(key):
    assert after(Model(), key).view.job is None
