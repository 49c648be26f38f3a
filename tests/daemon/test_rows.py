"""Who sees what of a process: rows are made for the peer that asks."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest

from msmon.bus.codec import decode, encode
from msmon.bus.messages import Reply, Status
from msmon.bus.rows import EXPORT_OWNER, OutputRow, StatusRow, TraceRow
from msmon.bus.words import ProcessState
from msmon.daemon.access.authentication import Peer
from msmon.daemon.access.roles import Role
from msmon.daemon.process import Life, Process
from msmon.daemon.rows import foreign_row, output_row, status_row
from msmon.sessions import Counts, MonitorSettings, ProcessInfo

OWNER = Peer(Role.USER, "uid 1000", "uid 1000", 1000)
STRANGER = Peer(Role.USER, "uid 1001", "uid 1001", 1001)
VIEWER = Peer(Role.VIEWER, "key eve", "public key")
OPERATOR = Peer(Role.OPERATOR, "uid 0", "uid 0", 0)

SECRETS = (
    "train.py",
    "Kernel",
    "secret-range",
    "msptiActivityFlushAll",
    "/home/alice",
    "5e55104",
    "7ace1d",
)


def process() -> Process:
    status = Status(
        ProcessState.MONITORING,
        session_id="5e55104",
        settings=MonitorSettings(
            kinds="Kernel", filter="Kernel:secret-range", log_file="/home/alice/out"
        ),
        stuck_in="msptiActivityFlushAll",
        unavailable_kinds={"MemCpy": "preload /home/alice/lib.so"},
        library="/home/alice/libmspti.so",
        problem="/home/alice/out is full",
        trace=TraceRow("done", "7ace1d", path="/home/alice/t", files=["/home/alice/t/a.json"]),
    )
    info = ProcessInfo("node", 11, 1, rank=3, command="python train.py")
    return Process(info, OWNER, b"r", "1", 0.0, status=status)


def row_for(peer: Peer) -> StatusRow:
    streams = SimpleNamespace(get=lambda _: None, id_of=lambda _, session_id: session_id)
    return status_row(process(), peer, streams, SimpleNamespace(), 1.0)


@pytest.mark.parametrize("peer", [OWNER, OPERATOR], ids=lambda peer: peer.name)
def test_the_owner_and_operators_see_everything(peer):
    assert all(secret in repr(row_for(peer)) for secret in SECRETS)


@pytest.mark.parametrize("peer", [STRANGER, VIEWER], ids=lambda peer: peer.name)
def test_others_see_what_a_process_does_but_no_command_path_or_id(peer):
    row = row_for(peer)
    assert not any(secret in repr(row) for secret in SECRETS)
    assert (row.pid, row.rank, row.state, row.trace.state) == (11, 3, "monitoring", "done")
    assert row.problem


def test_stages_that_an_agent_invents_are_one_and_the_row_is_read_by_its_receiver():
    invented = {f"stage {number}": 2 for number in range(15)}
    one = process()
    drops = {"slots": 1, **invented}
    one.status = Status(ProcessState.MONITORING, session_id="5e55104", counts=Counts(drops=drops))
    stream = SimpleNamespace(problem="", drops={"decode": 2}, final_counts=None)
    streams = SimpleNamespace(get=lambda _: stream, id_of=lambda *_: "x")
    outputs = SimpleNamespace(
        drops=lambda _: {"sink": 3, "disk": None}, files=lambda _: (), problem=lambda _: ""
    )
    row = status_row(one, OWNER, streams, outputs, 1.0)
    assert row.drops == {"slots": 1, "other": 30, "decode": 2, "sink": 3, "disk": None}
    assert decode(encode(Reply("ok", rows=[row]))).message.rows == [row]


def test_a_refusal_tells_no_command_line():
    row = foreign_row(process(), STRANGER)
    assert not any(secret in repr(row) for secret in SECRETS)
    assert "belongs to uid 1000" in row.text


def test_paths_of_outputs_are_for_operators():
    row = OutputRow("jsonl", {"path": "/home/alice"}, problem="/home/alice is full")
    assert "/home/alice" not in repr(output_row(row, STRANGER))
    assert output_row(row, OPERATOR).problem == "/home/alice is full"


def test_whose_an_export_is_is_seen_by_everybody():
    row = OutputRow("sqlite", {EXPORT_OWNER: "uid 1000"})
    assert output_row(row, STRANGER).options == {EXPORT_OWNER: "uid 1000"}


def test_the_last_step_of_a_process_that_fell_silent_grows_older():
    silent = process()
    silent.status = dataclasses.replace(silent.status, step=41, step_age_s=0.5)
    streams = SimpleNamespace(get=lambda _: None, id_of=lambda _, session_id: session_id)
    ages = {}
    for silent.life in Life:
        row = status_row(silent, OWNER, streams, SimpleNamespace(), 32.0)
        ages[silent.life] = row.step_age_s
    assert ages == {Life.LIVE: 0.5, Life.SILENT: 32.5, Life.LOST: 32.5, Life.ENDED: 32.5}
