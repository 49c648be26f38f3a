"""The screen, drawn without a terminal."""

from __future__ import annotations

import dataclasses
import io

import pytest
from fixtures.live_windows import LiveJob
from rich.console import Console

from msmon.commands.top.model import Model, RankKey, RankRow
from msmon.commands.top.screen.drawing import Frame, draw
from msmon.commands.top.screen.keys import press
from msmon.commands.top.screen.view import View, opened

SIZES = [(80, 24), (200, 50), (40, 10), (20, 5)]


def shown(frame: Frame, width: int) -> list[str]:
    """Return the lines as a terminal without colours gets them."""
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(frame.renderable, soft_wrap=True)
    return console.file.getvalue().split("\n")[:-1]


def after(model: Model, keys, width=80, height=24) -> list[str]:
    frame = draw(model, opened(View(), model), width, height)
    for key in keys:
        view = press(frame.view, key, frame.shown)
        frame = draw(model, view, width, height, trace_directory="/data/out")
    return shown(frame, width)


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize(
    "keys", [[], ["escape"], ["escape", "escape"], ["enter"], ["enter", "enter"], ["v"], ["?"],
             ["T"], ["/", "x"]],
)  # fmt: skip
def test_every_view_fits_the_screen(slow_model, width, height, keys):
    lines = after(slow_model, keys, width, height)
    assert len(lines) == height
    assert max(map(len, lines)) <= width


def test_the_first_look_at_80_columns(slow_model):
    lines = after(slow_model, [])
    text = "\n".join(lines)
    assert "2 daemons  1 job  8 processes, 8 monitored" in lines[0]
    assert "slow device: rank 3 (node1, NPU 1)" in lines[1]
    titles = ("RANK", "HOST", "STEP TIME", "PAST", "WORK", "EXPOSED", "IDLE", "AGE", "VERDICT")
    assert all(title in text for title in titles)
    (row,) = [line for line in lines if line.endswith("slow-device ")]
    assert row.split()[:4] == ["3", "node1", "1", "500ms"]
    assert lines[-1].endswith("q quit")


def test_a_wide_screen_shows_more_columns(slow_model):
    wide = "\n".join(after(slow_model, [], 200, 50))
    assert all(title in wide for title in ("PID", "STATE", "BUSY"))
    assert "PID" not in "\n".join(after(slow_model, []))


def test_what_is_unknown_is_a_dash(slow_model):
    rows = tuple(
        dataclasses.replace(row, step_ns=None, past=None, work=None, exposed=None, idle=None)
        for row in slow_model.ranks["train"]
    )
    model = dataclasses.replace(slow_model, ranks={"train": rows})
    row = next(line for line in after(model, []) if line.startswith(">"))
    assert row.split()[4:9] == ["-"] * 5


def test_text_of_others_can_neither_move_the_cursor_nor_be_markup(slow_model):
    evil = "\x1b[2J[red]\r\n\u202e"
    rows = tuple(
        dataclasses.replace(row, host=evil, verdict=evil) for row in slow_model.ranks["train"]
    )
    verdicts = tuple(
        dataclasses.replace(
            one, verdict=dataclasses.replace(one.verdict, text=evil, evidence=(evil,))
        )
        for one in slow_model.verdicts
    )
    model = dataclasses.replace(
        slow_model, ranks={"train": rows}, verdicts=verdicts, problems=(evil,)
    )
    for keys in ([], ["v"]):
        text = "".join(after(model, keys, 200, 50))
        assert text.isprintable()
        assert "[red]" in text


def test_wide_characters_keep_the_columns_in_place(slow_model):
    rows = tuple(dataclasses.replace(row, host="节点一") for row in slow_model.ranks["train"])
    model = dataclasses.replace(slow_model, ranks={"train": rows})
    plain_row = next(line for line in after(slow_model, []) if "slow-device " in line)
    wide_row = next(line for line in after(model, []) if "slow-device " in line)
    assert len(plain_row) - len(wide_row) == 3  # each takes two cells


def test_many_verdicts_leave_room_for_the_table(slow_model):
    model = dataclasses.replace(slow_model, verdicts=slow_model.verdicts * 50)
    lines = after(model, [], 80, 12)
    assert any("press v" in line for line in lines)
    assert sum("node" in line and "ms" in line for line in lines) >= 3


def test_the_question_of_the_trace_names_ranks_and_directory(slow_model):
    text = " ".join(after(slow_model, ["m", "m", "T"]))
    assert "Trace ranks 0-1 for 2 steps into /data/out?" in text


def test_the_verdicts_in_full_have_the_next_command_in_one_piece(slow_model):
    lines = after(slow_model, ["v"])
    assert any("msmon nputrace --host node1 --rank 3" in line for line in lines)
    assert any("worst: MatMul" in line for line in lines)


def test_a_job_without_a_verdict_says_so(model_of_job):
    model = model_of_job(LiveJob(ranks=4), 100)
    assert any("nothing stands out" in line for line in after(model, []))


def test_problems_stand_on_the_screen():
    model = Model(problems=("no daemon runs here; start msmon-daemon",))
    assert "start msmon-daemon" in after(model, [])[1]


def test_512_ranks_show_those_around_the_cursor(slow_model):
    first = slow_model.ranks["train"][0]
    rows: tuple[RankRow, ...] = tuple(
        dataclasses.replace(first, key=RankKey("n", rank), rank=rank) for rank in range(512)
    )
    model = dataclasses.replace(slow_model, ranks={"train": rows})
    lines = after(model, ["end", "up"])
    assert sum(line.startswith(">") for line in lines) == 1
    assert any(line.split()[:2] == [">", "510"] for line in lines)
