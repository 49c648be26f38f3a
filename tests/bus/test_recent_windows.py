"""Following the windows of a real daemon."""

from __future__ import annotations

import struct
import time

import numpy as np
import pytest

from msmon.bus.client import Client
from msmon.bus.messages import Selection, SessionNote, WindowReport, WindowsRequest
from msmon.bus.recent_windows import Page, RecentReader, SeenNote
from msmon.errors import CommandRefused
from msmon.records.kinds import ActivityKind
from msmon.records.window_frames import frames_of
from msmon.records.windows import OPERATOR_DTYPE, Window, operator_rows

SESSION = "5" * 32


def window(index: int) -> Window:
    operators = np.zeros(1, OPERATOR_DTYPE)
    operators["kind"], operators["count"], operators["name"] = 3, 4, 1
    return Window(index, 10, 20, 6, {"Kernel": 4}, operators=operators, names=("", "MatMul"))


def report(one, seq: int, index: int) -> None:
    made = window(index)
    one.send(WindowReport(SESSION, seq, **made.header_fields()), frames_of(made))


def read_until(reader: RecentReader, client: Client, count: int) -> Page:
    """Return all that came, once it is so many items."""
    items, deadline_s = [], time.monotonic() + 20
    while len(items) < count and time.monotonic() < deadline_s:
        items += reader.read(client).items
    return Page(items)


def test_windows_and_notes_come_as_they_were_sent(daemon, agent):
    daemon.start()
    one = agent(11, rank=3, job_id="j")
    one.open_session(SESSION)
    report(one, 2, 0)
    one.send(SessionNote(SESSION, 3, "parallel_group_info", '{"tp": [0, 1]}'))
    report(one, 4, 1)
    with Client(daemon.endpoint()) as client:
        reader = RecentReader()
        first, note, second = read_until(reader, client, 3).items
        assert [first.window.index, second.window.index] == [0, 1]
        assert first.window.names == ("", "MatMul")
        assert first.window.header_fields() == window(0).header_fields()
        assert (first.session.rank, first.session.session_id) == (3, SESSION)
        assert isinstance(note, SeenNote)
        assert note.value == '{"tp": [0, 1]}'
        assert not reader.read(client).items
    with Client(daemon.endpoint()) as client:
        assert not RecentReader(Selection(ranks=[4])).read(client).items


def test_a_window_of_an_agent_of_protocol_1_1_comes_with_the_fields_that_it_lacks(daemon, agent):
    daemon.start()
    one = agent(11)
    one.open_session(SESSION)
    kernel = struct.pack("<IqIIQQQQ", 2, 5, 1, 0, 2, 30, 10, 20)
    buckets = struct.pack("<IHQ", 0, 8211, 1) + struct.pack("<IHQ", 0, 8218, 1)
    one.send(WindowReport(SESSION, 2, 0, 10, 20, 7), (kernel, buckets, b"\0MatMul"))
    with Client(daemon.endpoint()) as client:
        (seen,) = read_until(RecentReader(), client, 1).items
    (row,) = operator_rows(seen.window)
    assert (row.kind, row.device_id, row.name) == (ActivityKind.Kernel, 5, "MatMul")
    assert (row.count, row.total_ns, row.min_ns, row.max_ns) == (2, 30, 10, 20)
    assert (row.domain, row.size_class) == ("", 0)
    assert (seen.window.step, seen.window.steps, seen.window.digest_step) == (7, 0, -1)
    assert (len(seen.window.devices), len(seen.window.collectives)) == (0, 0)
    assert len(seen.window.buckets) == 2


def test_frames_that_do_not_fit_are_counted_and_the_rest_comes(daemon, agent):
    daemon.start()
    one = agent(11)
    one.open_session(SESSION)
    broken = window(0)
    one.send(WindowReport(SESSION, 2, **broken.header_fields()), (b"abc", b"", b""))
    report(one, 3, 1)
    with Client(daemon.endpoint()) as client:
        reader, pages = RecentReader(), []
        while sum(len(page.items) for page in pages) < 1:
            pages.append(reader.read(client))
        assert sum(page.unreadable for page in pages) == 1


def test_a_reader_notices_another_daemon_and_begins_anew(daemon, agent):
    daemon.start()
    one = agent(11)
    one.open_session(SESSION)
    report(one, 2, 0)
    reader = RecentReader()
    with Client(daemon.endpoint()) as client:
        read_until(reader, client, 1)
    daemon.restart()
    with Client(daemon.endpoint()) as client:
        page = reader.read(client)
        assert page.restarted
        assert not reader.read(client).restarted


def test_windows_of_a_session_that_ended_are_still_there(daemon, agent):
    daemon.start()
    one = agent(11)
    one.open_session(SESSION)
    report(one, 2, 0)
    with Client(daemon.endpoint()) as client:
        read_until(RecentReader(), client, 1)
    one.end()
    with Client(daemon.endpoint()) as client:
        (again,) = RecentReader().read(client).windows
        assert again.window.index == 0


def test_who_does_not_read_an_answer_gets_no_other_one(daemon):
    daemon.start()
    with Client(daemon.endpoint()) as client:
        RecentReader().read(client)
        with pytest.raises(CommandRefused, match="has not been read"):
            client.exchange(WindowsRequest())
