"""Which windows are kept, which go to make room, and who gets them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import pytest

from msmon.bus.messages import Selection, WindowsReply, WindowsRequest
from msmon.daemon.access.authentication import Peer
from msmon.daemon.access.roles import Role
from msmon.daemon.access.shares import Resource, Shares
from msmon.daemon.outputs.delivery import NoteDelivery, WindowDelivery
from msmon.daemon.process import Process
from msmon.daemon.recent.recent_windows import RecentLimits, RecentWindows
from msmon.daemon.recent.reply import MOST_BYTES, windows_reply
from msmon.daemon.recent.shelf import KEPT_BYTES, KeptSession
from msmon.records.window_header import WindowHeader
from msmon.sessions import MonitorSettings, ProcessInfo, SessionInfo

ALICE = Peer(Role.USER, "uid 1000", "uid 1000", 1000)
BOB = Peer(Role.USER, "uid 1001", "uid 1001", 1001)
VIEWER = Peer(Role.VIEWER, "key eve", "e" * 40)
OPERATOR = Peer(Role.OPERATOR, "uid 0", "uid 0", 0)

FRAME_BYTES = 1000 - KEPT_BYTES
"""So that each window counts as 1,000 bytes."""


@dataclass
class Setting:
    """Recent windows of at most 10,000 bytes, 5,000 for one user."""

    limits: RecentLimits = field(default_factory=lambda: RecentLimits(60.0, 10_000))
    pids: int = 10

    def __post_init__(self) -> None:
        amounts = {Resource.RECENT_BYTES: float(self.limits.share_bytes)}
        self.shares = Shares(lambda owner: owner == "uid 0", amounts=amounts)
        self.recent = RecentWindows(self.shares, self.limits)

    def session(self, peer: Peer = ALICE, **fields) -> KeptSession:
        self.pids += 1
        process = Process(ProcessInfo("node", self.pids, 5, **fields), peer, b"r", "1", 0.0)
        info = SessionInfo(f"id{self.pids}", process.info, MonitorSettings(), 77)
        return self.recent.session(info, process)

    def keep(self, session: KeptSession, count: int = 1) -> None:
        for _ in range(count):
            index = self.recent.last_number
            frames = (bytes([index % 256]) * (FRAME_BYTES - 2), b"a", b"b")
            header = WindowHeader(index, 1, 2)
            self.recent.keep(session, WindowDelivery("s", 1, header, frames))

    def ask(self, peer: Peer = ALICE, **fields) -> WindowsReply:
        return windows_reply(WindowsRequest(**fields), peer, self.recent)[0]

    def numbers(self, peer: Peer = ALICE, **fields) -> list[int]:
        return [window.number for window in self.ask(peer, **fields).windows]


@pytest.fixture
def setting() -> Setting:
    return Setting()


def test_a_window_comes_back_as_it_was_with_its_process(setting):
    session = setting.session(rank=3, world_size=8, job_id="j", launch="l", command="secret")
    setting.keep(session)
    reply, payload = windows_reply(WindowsRequest(), ALICE, setting.recent)
    (window,), (told,) = reply.windows, reply.sessions
    assert window.header_fields() == WindowHeader(0, 1, 2).header_fields()
    assert window.frame_bytes == [FRAME_BYTES - 2, 1, 1]
    assert payload == b"\0" * (FRAME_BYTES - 2) + b"ab"
    assert (told.number, told.rank, told.job_id, told.start_time) == (window.session, 3, "j", 5)
    assert (told.session_id, told.command, told.start_ns) == ("id11", "secret", 77)


def test_the_oldest_windows_of_an_owner_make_room_for_its_new_ones(setting):
    setting.keep(setting.session(), 7)
    assert setting.numbers() == [3, 4, 5, 6, 7]
    assert setting.recent.given_up == 2
    assert setting.shares.used("uid 1000", Resource.RECENT_BYTES) == 5000


def test_nobody_is_pushed_out_by_those_who_have_more(setting):
    setting.keep(setting.session(BOB), 3)
    setting.keep(setting.session(OPERATOR), 20)
    assert setting.numbers(BOB) == [1, 2, 3]
    assert len(setting.numbers(OPERATOR)) == 10
    assert setting.recent.size_bytes == 10_000


def test_a_window_larger_than_all_the_room_is_given_up_and_nothing_goes_for_it(setting):
    session = setting.session()
    setting.keep(session, 2)
    frames = (bytes(20_000), b"", b"")
    setting.recent.keep(session, WindowDelivery("s", 1, WindowHeader(9, 1, 2), frames))
    assert setting.numbers() == [1, 2]
    assert setting.recent.given_up == 1


def test_windows_go_when_their_time_is_over_and_their_room_comes_back(setting):
    session = setting.session()
    setting.keep(session, 2)
    setting.recent.expire(time.monotonic() + 59)
    assert len(setting.recent) == 2
    setting.recent.expire(time.monotonic() + 61)
    assert (len(setting.recent), setting.recent.size_bytes, setting.recent.given_up) == (0, 0, 0)
    assert setting.shares.used("uid 1000", Resource.RECENT_BYTES) == 0


def test_nothing_is_kept_for_no_time_at_all():
    setting = Setting(RecentLimits(0.0, 10_000))
    setting.keep(setting.session())
    assert len(setting.recent) == 0


def test_a_reader_goes_on_where_it_was(setting):
    session = setting.session()
    setting.keep(session, 2)
    first = setting.ask()
    assert (first.last, first.more, first.missed) == (2, False, 0)
    setting.keep(session, 2)
    assert setting.numbers(epoch=first.epoch, after=first.last) == [3, 4]
    assert setting.numbers(epoch="of another daemon", after=first.last) == [1, 2, 3, 4]


def test_a_reader_learns_how_many_windows_went_before_it_asked(setting):
    session, other = setting.session(rank=1), setting.session(rank=2)
    setting.keep(session)
    first = setting.ask()
    setting.keep(session, 4)
    setting.keep(other, 3)
    again = {"epoch": first.epoch, "after": first.last}
    assert setting.ask(**again).missed == 2
    assert setting.ask(**again, selection=Selection(ranks=[2])).missed == 0
    assert setting.ask(BOB, **again).missed == 0


def test_an_answer_holds_what_fits_and_the_next_one_goes_on(setting):
    setting.keep(setting.session(), 5)
    page, seen = setting.ask(most_bytes=2000), []
    for _ in range(3):
        seen.append([window.number for window in page.windows])
        page = setting.ask(epoch=page.epoch, after=page.last, most_bytes=2000)
    assert seen == [[1, 2], [3, 4], [5]]
    assert not page.windows
    assert setting.numbers(most_bytes=0) == [1], "the first one always comes"


def test_an_answer_is_bounded_whatever_is_asked_for():
    setting = Setting(RecentLimits(60.0, 64 << 20))
    session = setting.session(OPERATOR)
    frames = (bytes(1 << 20), b"", b"")
    for index in range(6):
        setting.recent.keep(session, WindowDelivery("s", 1, WindowHeader(index, 1, 2), frames))
    reply, payload = windows_reply(WindowsRequest(most_bytes=1 << 50), OPERATOR, setting.recent)
    assert len(payload) <= MOST_BYTES
    assert (len(reply.windows), reply.more) == (3, True)


def test_only_selected_processes_are_told_of(setting):
    one, two = setting.session(rank=1, job_id="a"), setting.session(rank=2, job_id="b")
    setting.keep(one)
    setting.keep(two, 2)
    assert setting.numbers(selection=Selection(ranks=[2])) == [2, 3]
    reply = setting.ask(selection=Selection(job_ids=["a"]))
    assert ([window.number for window in reply.windows], reply.last) == ([1], 3)


def test_users_see_their_own_and_viewers_all_without_what_is_secret(setting):
    setting.keep(setting.session(ALICE, command="/home/alice/train.py"))
    setting.keep(setting.session(BOB))
    assert setting.numbers(ALICE) == [1]
    assert setting.numbers(BOB) == [2]
    assert setting.numbers(OPERATOR) == setting.numbers(VIEWER) == [1, 2]
    told = setting.ask(VIEWER).sessions[0]
    assert (told.session_id, told.command) == ("", "")
    assert told.number == setting.ask(OPERATOR).sessions[0].number


def test_a_note_on_groups_comes_in_its_turn_and_stays_as_long_as_its_session(setting):
    session = setting.session()
    setting.keep(session)
    note = NoteDelivery("s", 2, "parallel_group_info", b"{}")
    setting.recent.keep_note(session, note)
    setting.recent.keep_note(session, NoteDelivery("s", 3, "settings", b"{}"))
    first = setting.ask()
    assert [(item.number, item.key, item.frame_bytes) for item in first.notes] == [
        (2, "parallel_group_info", [2])
    ]
    setting.keep(session)
    assert not setting.ask(epoch=first.epoch, after=first.last).notes
    setting.recent.expire(time.monotonic() + 61)
    assert len(setting.ask().notes) == 1, "the session goes on"
    setting.recent.end(session)
    assert not setting.ask().notes
    assert setting.recent.size_bytes == 0


def test_a_newer_note_takes_the_place_of_an_older_one(setting):
    session = setting.session()
    for value in (b"old", b"new one"):
        setting.recent.keep_note(session, NoteDelivery("s", 2, "parallel_group_info", value))
    reply, payload = windows_reply(WindowsRequest(), ALICE, setting.recent)
    assert ([item.number for item in reply.notes], payload) == ([2], b"new one")
    assert setting.recent.size_bytes == KEPT_BYTES + len(b"new one")
