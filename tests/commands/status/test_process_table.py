"""The table of ``msmon status`` and the lines below it."""

from __future__ import annotations

import io

import pytest
from fixtures.rows import daemon_row, status_row
from rich.console import Console, Group

from msmon.bus.rows import OrderRow
from msmon.commands.status.process_table import (
    age_text,
    daemon_lines,
    details,
    dropped_text,
    format_ranks,
    live_first,
    notes,
    odd_first,
    process_table,
    settings_text,
    short_count,
)
from msmon.sessions import MonitorSettings


def row(rank: int, **changes):
    fields = {
        "host": "node-17.cluster.example.org",
        "pid": 1_234_567 + rank,
        "rank": rank,
        "device": rank % 8,
        "framework": "mindspore",
        "job_id": "123_4",
        "state": "monitoring",
        "step": 123_456,
        "step_age_s": 0.2,
        "settings": MonitorSettings(filter="Kernel:MatMul").as_fields(),
        "received": {"Kernel": 123_456_789, "Marker": 10},
        "kept": {"Kernel": 1_234},
        "drops": {},
        "last_seen_s": 0.4,
        **changes,
    }
    return status_row(**fields)


def drawn(renderable, width: int = 80) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    console.print(renderable)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (9_999, "9999"),
        (10_000, "10.0k"),
        (99_951, "100k"),
        (999_499, "999k"),
        (999_500, "1.00M"),
        (123_456_789, "123M"),
        (10**12, "1.00T"),
        (10**19, "10000P"),
    ],
)
def test_counts_are_short(number, text):
    assert short_count(number) == text


def test_an_unknown_number_of_drops_is_not_zero():
    assert dropped_text({}) == "0"
    assert dropped_text({"uplink": 3, "sink": 4}) == "7"
    assert dropped_text({"decode": None}) == "?"
    assert dropped_text({"decode": None, "uplink": 3}) == "3+"


def test_ranges_open_at_a_stop_alarm_nobody_and_are_in_the_details():
    stopped = row(0, settings=None, drops={"open": 3})
    assert dropped_text(stopped.drops) == "0"
    assert dropped_text({"open": 3, "markers": 1}) == "1"
    assert notes([stopped]) == []
    assert "  dropped  open 3" in [line.plain for line in details(stopped)]


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "-"), (-1.0, "-"), (0.4, "0s"), (300, "5m"), (7200, "2h")]
)
def test_ages_are_short(seconds, text):
    assert age_text(seconds) == text


def test_the_table_fits_80_columns_and_keeps_all_but_the_host_name():
    lines = drawn(process_table([row(0), row(1023)]))
    assert all(len(line) <= 80 for line in lines)
    assert len(lines) == 3
    for text in ("1023", "1235590", "monitoring", "123456", "123M", "1234", "0s"):
        assert text in lines[2]


def test_rows_come_in_rank_order_and_jobs_get_a_column():
    rows = live_first([row(1), row(0), row(0, job_id="99")])
    table = drawn(process_table(rows), width=120)
    assert [line.split()[:2] for line in table[1:]] == [["123_4", "0"], ["123_4", "1"], ["99", "0"]]


def test_live_processes_come_before_those_that_are_gone():
    rows = [row(0, state="lost"), row(1), row(2, state="ended"), row(3)]
    assert [each.rank for each in live_first(rows)] == [1, 3, 0, 2]


def test_a_page_that_is_too_short_keeps_the_odd_ones():
    rows = [
        row(0),
        row(1, state="ended"),
        row(2, state="lost"),
        row(3, state="failed"),
        row(4, stuck_in="msptiActivityEnable"),
    ]
    assert [each.rank for each in odd_first(rows)] == [3, 4, 2, 0, 1]


def test_equal_settings_are_said_once():
    lines = [line.plain for line in notes([row(0), row(1), row(2), row(7, settings=None)])]
    assert lines == ['ranks 0-2: --kind Kernel --filter "Kernel:MatMul"']


def test_problems_are_shown_per_rank():
    lines = [
        line.plain
        for line in notes(
            [
                row(0, settings=None, unavailable_kinds={"MemCpy": "needs LD_PRELOAD"}),
                row(1, settings=None, stuck_in="msptiActivityEnable(Kernel)"),
                row(2, settings=None, drops={"uplink": 12, "decode": None}),
            ]
        )
    ]
    assert "MemCpy is not collected: needs LD_PRELOAD" in lines[0]
    assert "stuck in msptiActivityEnable(Kernel)" in lines[1]
    assert "dropped: uplink 12, decode unknown" in lines[2]


def test_a_silent_process_is_said_to_run():
    (line,) = (item.plain for item in notes([row(0, settings=None, state="silent")]))
    assert "it runs but says nothing" in line


def test_who_waits_for_others_says_for_whom():
    pids = list(range(11, 21))
    (line,) = (item.plain for item in notes([row(0, settings=None, waits_for=pids)]))
    assert "waits for 11, 12, 13, 14, 15, 16, 17, 18 and 2 more, which it has started" in line


def test_a_stuck_process_says_so_in_its_row():
    assert "stuck" in drawn(process_table([row(0, stuck_in="msptiActivityFlushAll")]))[1]


def test_a_process_that_says_little_is_shown_with_dashes():
    line = drawn(
        process_table([status_row(host="h", pid=5, rank=-1, state="?", last_seen_s=-1.0)])
    )[1]
    assert line.split() == ["-", "h", "5", "-", "-", "?", "-", "0", "0", "0", "-"]


def test_details_name_everything_in_force():
    text = "\n".join(
        drawn(Group(*details(row(3, files=["/data/out/a.db"], problem="no libmspti"))), 200)
    )
    for part in (
        "rank 3",
        '--filter "Kernel:MatMul"',
        "Kernel 1234",
        "/data/out/a.db",
        "no libmspti",
    ):
        assert part in text


def test_control_characters_of_a_job_do_not_reach_the_terminal():
    text = "\n".join(drawn(Group(*details(row(0, command="python \x1b[2J evil\n.py"))), 200))
    assert "\x1b" not in text
    assert "\\x1b[2J" in text


def test_settings_are_written_as_the_options_that_ask_for_them():
    settings = MonitorSettings(
        kinds="Kernel,Communication", report_interval_s=0.5, log_file="/data/my out"
    )
    assert settings_text(settings) == (
        '--kind Kernel,Communication --report-interval-s 0.5 --log-file "/data/my out"'
    )


def test_ranks_are_written_as_the_option_reads_them():
    assert format_ranks([0, 1, 2, 3, 7, 9, 10]) == "0-3,7,9-10"


def order_row(**changes) -> OrderRow:
    fields = {
        "name": "always",
        "owner": "uid 0",
        "selection": "--rank 0-7",
        "options": "--kind Kernel",
        "given_ns": 5,
        "following": 0,
        "waiting": 0,
    }
    return OrderRow(**{**fields, **changes})


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "order always: --rank 0-7: --kind Kernel: no process yet"),
        ({"following": 1}, "order always: --rank 0-7: --kind Kernel: 1 process follows"),
        (
            {"following": 2, "waiting": 1, "left_alone": ["--rank 3"], "file": "/etc/d.toml"},
            "order always: --rank 0-7: --kind Kernel: 2 processes follow; it leaves alone "
            "--rank 3; given by /etc/d.toml; 1 can't or need not, see below",
        ),
    ],
)
def test_a_standing_order_has_a_line_with_or_without_processes(changes, line):
    (_, shown) = daemon_lines(daemon_row(host="node", pid=1, orders=[order_row(**changes)]))
    assert shown.plain == line


def test_a_process_tells_its_order_or_why_it_does_not_follow():
    text = "\n".join(line.plain for line in notes([row(0, order="night")]))
    assert "(order night)" in text
    waiting = row(0, order="night", order_problem="no CANN", settings=None, state="idle")
    assert "order night: no CANN" in "\n".join(line.plain for line in notes([waiting]))
    assert ["order", "night"] in [line.plain.split() for line in details(waiting)]
