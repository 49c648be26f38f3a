"""A page of ``msmon status --watch`` fills the terminal, and says how many rows it hides."""

from __future__ import annotations

import io

import pytest
from fixtures.rows import daemon_row, status_row
from rich.console import Console

from msmon.bus.messages import Reply
from msmon.commands.status.page import page_that_fits

DAEMON = daemon_row(version="0.1.0", host="node1", pid=7)


def shown(rows, height: int, verbose: bool = False) -> list[str]:
    console = Console(file=io.StringIO(), width=80, height=height)
    console.print(page_that_fits(Reply("ok", rows=rows, daemon=DAEMON), verbose, console))
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def healthy(count: int) -> list:
    return [status_row(rank=rank, pid=100 + rank) for rank in range(count)]


def test_a_page_with_room_for_all_hides_nothing() -> None:
    lines = shown(healthy(5), height=8)
    assert len(lines) == 8
    assert not any("more" in line for line in lines)


@pytest.mark.parametrize("height", [8, 12, 20])
def test_a_low_terminal_is_filled_and_says_how_many_are_hidden(height: int) -> None:
    lines = shown(healthy(300), height)
    assert len(lines) == height
    assert lines[-1] == f"… and {300 - (height - 4)} more; a higher terminal shows them"


def test_the_odd_ones_are_those_that_stay() -> None:
    rows = [*healthy(40), status_row(rank=40, state="failed", problem="no library")]
    rows.append(status_row(rank=41, state="lost"))
    lines = shown(rows, height=12)
    assert len(lines) <= 12
    assert "failed" in lines[3]
    assert "lost" in lines[4]
    assert lines[-1] == "rank 40 node:11: no library"


def test_one_process_stays_however_low_the_terminal() -> None:
    lines = shown(healthy(3), height=2)
    assert "100" in lines[3]
    assert lines[4].startswith("… and 2 more")
