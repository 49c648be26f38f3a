"""Duplicates, acknowledgements, lost sessions and their return, with outputs that remember."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from msmon.bus.messages import (
    GapReport,
    Records,
    SessionClosed,
    SessionNote,
    SessionOpened,
    Status,
    WindowReport,
    WindowSoFar,
)
from msmon.daemon.access.approvals import Approvals
from msmon.daemon.access.authentication import Peer
from msmon.daemon.access.owners import Owner
from msmon.daemon.access.roles import Role
from msmon.daemon.access.shares import LIMITS, Resource, Shares
from msmon.daemon.outputs.delivery import Closing, NoteDelivery, WindowDelivery
from msmon.daemon.process import Life, Process
from msmon.daemon.recent.recent_windows import RecentWindows
from msmon.daemon.streams.admission import MAX_OPEN_SESSIONS_PER_PROCESS
from msmon.daemon.streams.from_wire import MAX_WINDOW_BYTES
from msmon.daemon.streams.losses import unreadable
from msmon.daemon.streams.streams import Streams
from msmon.errors import CommandRefused, SinkError
from msmon.records.dtypes import DTYPES
from msmon.records.kinds import ActivityKind
from msmon.records.window_header import WindowHeader
from msmon.records.windows import MAX_NAMES, MAX_ROWS, OPERATOR_DTYPE
from msmon.sessions import Counts, Gap, MonitorSettings, ProcessInfo, SessionEnd, SessionInfo

OPERATOR_KEY = Peer(Role.OPERATOR, "key olga", "k" * 40)
OPERATOR = Peer(Role.OPERATOR, "uid 0", "uid 0", 0)
USER = Peer(Role.USER, "uid 1000", "uid 1000", 1000)
THIEF = Peer(Role.USER, "uid 1001", "uid 1001", 1001)


@dataclass
class Opened:
    session: SessionInfo
    owner: Owner


@dataclass
class Forgotten:
    session_id: str


class RememberingOutputs:
    """Keeps every call; opening fails where ``error`` is set."""

    def __init__(self) -> None:
        self.calls: list = []
        self.error: SinkError | None = None

    def open_session(self, session, owner, done) -> None:
        if self.error is not None and session.settings.log_file:
            raise self.error
        self.calls.append(Opened(session, owner))
        done(("/out/file",))

    def put(self, delivery) -> None:
        self.calls.append(delivery)

    def check(self, now_s) -> None:
        pass

    def forget(self, session_id) -> None:
        self.calls.append(Forgotten(session_id))

    def names(self) -> list[str]:
        return [type(call).__name__ for call in self.calls]


class Setting:
    """Streams over remembering outputs, with the acknowledgements that they sent."""

    def __init__(self, directory: Path) -> None:
        self.outputs = RememberingOutputs()
        self.acknowledged: list[int] = []
        self.approvals = Approvals(directory)
        self.shares = Shares()
        self.streams = Streams(
            self.outputs,
            self.approvals,
            lambda process, session_id, seq: self.acknowledged.append(seq),
            lambda call: call(),
            grace_s=10.0,
            keep_closed_s=600.0,
            recent=RecentWindows(self.shares),
            shares=self.shares,
        )

    def process(self, peer: Peer = OPERATOR, pid: int = 11) -> Process:
        return Process(ProcessInfo("node", pid, 1), peer, b"r", "1", 0.0)

    def take(self, process: Process, *messages) -> None:
        for message in messages:
            self.streams.take(process, message, ())


@pytest.fixture
def setting(tmp_path) -> Setting:
    return Setting(tmp_path)


def opened(**settings) -> SessionOpened:
    return SessionOpened("s", 1, MonitorSettings(**settings), 5)


def window(seq: int) -> WindowReport:
    return WindowReport("s", seq, 0, 1, 2, step=4, kept={"Kernel": 3})


def test_everything_reaches_the_outputs_once_and_in_order(setting):
    process = setting.process()
    messages = [
        opened(),
        Records("s", 2, 2, 0),
        window(3),
        SessionNote("s", 4, "key", "value"),
        GapReport("s", 5, Gap("uplink", 1, 2, {"Kernel": 1})),
        SessionClosed("s", 6, SessionEnd(9, "stopped")),
    ]
    setting.take(process, *messages, *messages)
    assert setting.outputs.names() == [
        *("Opened", "BatchDelivery", "WindowDelivery"),
        *("NoteDelivery", "GapDelivery", "Closing"),
    ]
    assert setting.outputs.calls[2].header == WindowHeader(0, 1, 2, 4, kept={"Kernel": 3})


def test_a_long_note_comes_as_a_payload_frame(setting):
    process = setting.process()
    setting.take(process, opened())
    setting.streams.take(process, SessionNote("s", 2, "key", ""), ["a long \u00e9".encode()])
    assert setting.outputs.calls[-1] == NoteDelivery("s", 2, "key", "a long \u00e9".encode())


def test_only_what_is_safe_is_acknowledged_and_duplicates_are_again(setting):
    process = setting.process()
    setting.take(process, opened(), window(2), window(3))
    assert setting.acknowledged == [1]
    setting.streams.committed("s", 2)
    setting.streams.committed("s", 2)
    assert setting.acknowledged == [1, 2]
    setting.take(process, window(3))
    assert setting.acknowledged == [1, 2, 2]


def test_a_stream_of_an_earlier_daemon_goes_on_where_it_was(setting):
    setting.take(setting.process(), opened(), window(57))
    assert setting.outputs.names() == ["Opened", "WindowDelivery"]


def test_a_session_that_was_not_opened_is_refused(setting):
    with pytest.raises(CommandRefused, match="not opened"):
        setting.take(setting.process(), window(2))


def test_a_session_belongs_to_the_process_that_opened_it(setting):
    setting.take(setting.process(), opened())
    with pytest.raises(CommandRefused, match="another process"):
        setting.take(setting.process(pid=12), window(2))
    setting.take(setting.process(), window(2))  # the same process, known anew


def test_a_session_of_a_vanished_process_is_closed_after_the_grace(setting):
    process = setting.process()
    process.status = Status("monitoring", session_id="s", counts=Counts({"Kernel": 7}))
    setting.take(process, opened(), window(2))
    process.life, process.gone_s = Life.LOST, 100.0
    setting.streams.expire(109.0)
    assert "Closing" not in setting.outputs.names()
    setting.streams.expire(111.0)
    setting.streams.expire(112.0)
    (close,) = (call for call in setting.outputs.calls if isinstance(call, Closing))
    assert (close.seq, close.end.reason) == (2, "lost")
    assert close.end.counts == Counts({"Kernel": 7}, drops={"windows": None})


def test_of_a_vanished_process_counts_at_least_what_came_and_nobody_knows_the_rest(setting):
    process = setting.process()
    process.status = Status("monitoring", session_id="s", counts=Counts({"Kernel": 7}))
    setting.take(process, opened(ship_records=True))
    payload = (bytes(9 * DTYPES[ActivityKind.Kernel].itemsize), b"")
    setting.streams.take(process, Records("s", 2, int(ActivityKind.Kernel), 9), payload)
    process.life, process.gone_s = Life.LOST, 100.0
    setting.streams.expire(111.0)
    end = setting.outputs.calls[-1].end
    assert end.counts == Counts(
        {"Kernel": 9}, {"Kernel": 9}, drops={"uplink": None, "windows": None}
    )


def test_sessions_of_a_program_that_was_replaced_are_closed_and_make_room(setting):
    process = setting.process()
    for number in range(MAX_OPEN_SESSIONS_PER_PROCESS + 1):
        setting.take(process, dataclasses.replace(opened(), session_id=f"s{number}"))
        setting.streams.end_replaced(process)
    closes = [call for call in setting.outputs.calls if isinstance(call, Closing)]
    assert len(closes) == MAX_OPEN_SESSIONS_PER_PROCESS + 1
    assert {close.end.reason for close in closes} == {"replaced"}


def so_far(index: int, kernels: int) -> WindowSoFar:
    return WindowSoFar("s", index, 1, 2, step=4, kept={"Kernel": kernels})


def windows(setting) -> list[tuple[int, int]]:
    return [
        (call.header.index, call.header.kept["Kernel"])
        for call in setting.outputs.calls
        if isinstance(call, WindowDelivery)
    ]


def lose(setting, process) -> None:
    process.life, process.gone_s = Life.LOST, 0.0
    setting.streams.expire(1_000.0)


def test_the_open_window_of_a_lost_process_is_closed_with_what_it_held(setting):
    process = setting.process()
    setting.take(process, opened(), window(2))
    for held in (so_far(1, 5), so_far(1, 8)):
        setting.streams.keep_so_far(process, held, (b"", b"", b""))
    assert windows(setting) == [(0, 3)]
    lose(setting, process)
    assert setting.outputs.names() == ["Opened", "WindowDelivery", "WindowDelivery", "Closing"]
    assert windows(setting) == [(0, 3), (1, 8)]
    assert setting.acknowledged == [1]


def test_a_window_that_came_as_a_whole_replaces_what_was_told_of_it(setting):
    process = setting.process()
    setting.take(process, opened())
    setting.streams.keep_so_far(process, so_far(0, 2), ())
    setting.take(process, window(2))
    setting.streams.keep_so_far(process, so_far(0, 2), ())  # it was late
    lose(setting, process)
    assert windows(setting) == [(0, 3)]


def test_what_is_told_of_a_window_may_overtake_the_report_of_the_one_before(setting):
    process = setting.process()
    setting.take(process, opened())
    setting.streams.keep_so_far(process, so_far(1, 2), ())
    setting.take(process, window(2))
    lose(setting, process)
    assert windows(setting) == [(0, 3), (1, 2)]


def test_a_session_that_ends_leaves_no_open_window(setting):
    process = setting.process()
    setting.take(process, opened())
    setting.streams.keep_so_far(process, so_far(0, 2), ())
    setting.take(process, SessionClosed("s", 2, SessionEnd(9, "stopped")))
    setting.streams.keep_so_far(process, so_far(1, 2), ())
    lose(setting, process)
    assert windows(setting) == []


def test_open_windows_take_nothing_from_the_share_of_statuses(setting):
    process = setting.process(USER)
    setting.take(process, opened())
    setting.streams.keep_so_far(process, so_far(0, 2), (bytes(1000),))
    assert setting.shares.used(USER.owner, Resource.REMEMBERED_BYTES) == 0
    assert setting.shares.used(USER.owner, Resource.OPEN_WINDOW_BYTES) > 1000
    setting.take(process, SessionClosed("s", 2, SessionEnd(9, "stopped")))
    assert setting.shares.used(USER.owner, Resource.OPEN_WINDOW_BYTES) == 0


def test_a_process_that_vanishes_again_is_told_again(setting):
    process = setting.process()
    setting.take(process, opened())
    lose(setting, process)
    (stream,) = setting.streams.lost()
    stream.loss_told = True
    process.life = Life.LIVE
    setting.take(process, window(2))
    assert setting.streams.lost() == []
    lose(setting, process)
    assert [item.loss_told for item in setting.streams.lost()] == [False]


def test_an_open_window_that_is_too_large_is_not_kept(setting):
    process = setting.process()
    setting.take(process, opened())
    setting.streams.keep_so_far(process, so_far(0, 2), (bytes(MAX_WINDOW_BYTES + 1),))
    setting.streams.keep_so_far(process, WindowSoFar("other", 0, 1, 2), ())
    lose(setting, process)
    assert windows(setting) == []


def test_a_lost_session_goes_on_when_its_process_is_back(setting):
    process = setting.process()
    setting.take(process, opened())
    process.life = Life.LOST
    setting.streams.expire(1_000.0)
    process.life = Life.LIVE
    setting.take(process, window(2))
    assert setting.outputs.names() == ["Opened", "Closing", "Opened", "WindowDelivery"]


def test_an_export_that_a_users_agent_names_needs_an_approval(setting, tmp_path):
    process = setting.process(USER)
    setting.take(process, opened(log_file="/etc"))
    assert setting.outputs.calls[0].session.settings.log_file == ""
    assert "not approved" in setting.streams.get("s-1000").problem

    setting.approvals.add(USER.owner, "/exports/mine")
    restarted = Setting(tmp_path)
    restarted.take(process, opened(log_file="/exports/mine"))
    assert restarted.outputs.calls[0].session.settings.log_file == "/exports/mine"
    assert restarted.outputs.calls[0].owner == Owner("uid 1000", 1000)


def test_an_operators_key_names_no_directory_without_an_approval(setting):
    process = setting.process(OPERATOR_KEY)
    setting.take(process, opened(log_file="/etc/cron.d"))
    assert setting.outputs.calls[0].session.settings.log_file == ""
    assert "not approved" in setting.streams.get(setting.streams.id_of(process, "s")).problem


def test_a_session_that_ended_long_ago_is_forgotten_everywhere(setting):
    process = setting.process(USER)
    setting.approvals.add(USER.owner, "/exports/mine")
    end = SessionClosed("s", 2, SessionEnd(9, "stopped"))
    setting.take(process, opened(log_file="/exports/mine"), end)
    setting.streams.expire(time.monotonic() + 601.0)
    assert setting.outputs.calls[-1] == Forgotten("s-1000")
    assert setting.streams.get("s-1000") is None


def test_who_takes_the_session_id_of_another_first_keeps_nobody_out(setting):
    raced, owner = setting.process(THIEF), setting.process(USER)
    setting.take(raced, opened())
    setting.take(owner, opened(), window(2))
    assert [call.session.session_id for call in setting.outputs.calls[:2]] == ["s-1001", "s-1000"]
    assert [call.session.owner for call in setting.outputs.calls[:2]] == ["uid 1001", "uid 1000"]
    assert setting.streams.get("s-1000").last_seq == 2
    assert setting.streams.get("s-1001").last_seq == 1


@pytest.mark.parametrize(
    "payload",
    [
        (bytes(MAX_WINDOW_BYTES + 1),),
        (bytes((MAX_ROWS + 1) * OPERATOR_DTYPE.itemsize), b"", b""),
        (b"", b"", bytes(MAX_NAMES)),
    ],
    ids=["bytes", "rows", "names"],
)
def test_a_window_with_too_many_rows_is_a_gap(setting, payload):
    process = setting.process()
    setting.take(process, opened())
    setting.streams.take(process, window(2), payload)
    gap = setting.outputs.calls[-1].gap
    assert (gap.stage, gap.records) == ("windows", {"Kernel": 3})
    assert setting.streams.get("s").drops == {"windows": 3}


def test_records_of_an_unknown_kind_are_counted_as_dropped(setting):
    process = setting.process()
    setting.take(process, opened())
    setting.streams.take(process, Records("s", 2, kind=999, count=3), (bytes(30), b""))
    assert setting.outputs.calls[-1].gap.records == {"kind 999": 3}
    assert setting.streams.get(setting.streams.id_of(process, "s")).drops == {"decode": 3}


def test_ended_sessions_make_room_for_new_ones_of_their_owner(setting):
    process = setting.process(USER)
    for number in range(int(LIMITS[Resource.SESSIONS].amount) + 3):
        setting.take(process, SessionOpened(f"s{number}", 1, MonitorSettings(), 1))
        setting.take(process, SessionClosed(f"s{number}", 2, SessionEnd(9, "stopped")))
    forgotten = [call for call in setting.outputs.calls if isinstance(call, Forgotten)]
    assert len(forgotten) == 3


def test_an_export_that_cannot_be_made_leaves_the_session_to_other_outputs(setting):
    setting.outputs.error = SinkError("no such output")
    setting.take(setting.process(), opened(log_file="/out"), window(2))
    assert setting.outputs.names() == ["Opened", "WindowDelivery"]
    assert setting.streams.get("s").problem == "no such output"


def test_waiting_for_the_files_of_a_session(setting):
    async def wait() -> tuple:
        waiting = asyncio.ensure_future(setting.streams.opened("s", 5.0))
        await asyncio.sleep(0)
        setting.take(setting.process(), opened())
        return await waiting, await setting.streams.opened("other", 0.01)

    assert asyncio.run(wait()) == (("/out/file",), None)


def test_a_refused_session_is_counted_and_keeps_nothing_behind_it_waiting(setting):
    process = setting.process()
    for number in range(8):
        setting.take(process, SessionOpened(f"s{number}", 1, MonitorSettings(), 0))
    setting.acknowledged.clear()
    ninth = SessionOpened("s8", 1, MonitorSettings(), 0)
    kernels = Records("s8", 2, int(ActivityKind.Kernel), 3)
    payload = (bytes(3 * DTYPES[ActivityKind.Kernel].itemsize), b"")
    for _ in range(2):  # it comes again after a reconnect
        setting.take(process, ninth)
        setting.streams.take(process, kernels, payload)
    setting.take(process, SessionClosed("s8", 3, SessionEnd(9, "stopped")))
    refused = setting.streams.get("s8")
    assert setting.acknowledged == [1, 2, 2, 2, 3]
    assert refused.drops == {"refused": 3}
    assert "too many open sessions" in refused.problem
    assert setting.outputs.names() == ["Opened"] * 8
    setting.streams.expire(time.monotonic() + 601.0)
    assert setting.streams.get("s8") is None
    setting.take(process, ninth)
    assert setting.outputs.names() == ["Opened"] * 8


def test_a_setting_with_a_wrong_value_is_refused_for_good_and_the_start_hears_why(setting):
    process = setting.process()
    setting.take(process, opened(export_type="Parquet"), window(2))
    answer = asyncio.run(setting.streams.opened("s", 1.0))
    assert isinstance(answer, CommandRefused)
    assert "Parquet" in answer.message
    assert setting.acknowledged == [1, 2]
    assert setting.outputs.names() == []


def test_a_message_that_cannot_be_read_is_a_loss_and_the_stream_goes_on(setting):
    process = setting.process()
    setting.take(process, opened())
    header = {"type": "records", "session_id": "s", "seq": 2, "kind": 2, "count": 7, "new": 1}
    message = unreadable(header, (bytes(700), b""), "unknown field 'new'")
    for _ in range(2):
        setting.streams.pass_over(process, message)
    setting.take(process, window(3))
    gap = setting.outputs.calls[1].gap
    kind = ActivityKind(2).name
    assert (gap.stage, gap.records) == ("refused", {kind: 7})
    assert "unknown field 'new'" in gap.reason
    assert setting.outputs.names() == ["Opened", "GapDelivery", "WindowDelivery"]
    assert setting.streams.get("s").drops == {"refused": 7}


def test_the_end_of_a_session_ends_it_even_if_it_cannot_be_read(setting):
    process = setting.process()
    setting.take(process, opened())
    header = {"type": "session-closed", "session_id": "s", "seq": 2, "end": {"new": 1}}
    setting.streams.pass_over(process, unreadable(header, (), "unknown field"))
    assert setting.outputs.names() == ["Opened", "Closing"]


@pytest.mark.parametrize(
    "header", [{}, {"type": "status", "seq": 1}, {"type": "records", "session_id": "s", "seq": -1}]
)
def test_what_has_no_place_in_a_stream_is_no_loss(header):
    assert unreadable(header, (), "damaged") is None


def test_whoever_waits_for_the_end_of_a_session_hears_of_it_once_all_is_written(setting):
    process = setting.process()

    async def scenario() -> tuple[bool, bool]:
        setting.take(process, opened(), SessionClosed("s", 2, SessionEnd(9, "stopped")))
        waiting = asyncio.ensure_future(setting.streams.written("s", 10.0))
        early = await setting.streams.written("s", 0.0)
        setting.streams.committed("s", 2)
        return early, await waiting

    assert asyncio.run(scenario()) == (False, True)


def test_the_sessions_of_others_do_not_count_where_a_process_opens_one(setting):
    for pid in range(2 * MAX_OPEN_SESSIONS_PER_PROCESS):
        setting.take(setting.process(pid=pid), SessionOpened(f"s{pid}", 1, MonitorSettings(), 5))
    one = setting.process(pid=99)
    for number in range(MAX_OPEN_SESSIONS_PER_PROCESS + 1):
        setting.take(one, SessionOpened(f"own{number}", 1, MonitorSettings(), 5))
    names = [call.session.session_id for call in setting.outputs.calls if isinstance(call, Opened)]
    assert len([name for name in names if name.startswith("own")]) == MAX_OPEN_SESSIONS_PER_PROCESS
    assert setting.streams.get(f"own{MAX_OPEN_SESSIONS_PER_PROCESS}").refused
