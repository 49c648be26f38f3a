"""A start command with an export: what an owner's check does to the processes of others."""

from __future__ import annotations

import asyncio

import pytest

from msmon.bus.messages import Answer, MonitorRequest
from msmon.daemon.access.approvals import Approvals
from msmon.daemon.access.authentication import Peer
from msmon.daemon.access.roles import Role
from msmon.daemon.commands.commander import Commander
from msmon.daemon.commands.monitoring import Monitoring
from msmon.daemon.process import Process
from msmon.errors import SinkError
from msmon.sessions import ProcessInfo

OPERATOR = Peer(Role.OPERATOR, "uid 0", "uid 0", 0)
HANGING, PROMPT = 1001, 1002


class Processes:
    def __init__(self, *uids: int) -> None:
        self._all = [
            Process(
                ProcessInfo("node", uid, 1),
                Peer(Role.USER, f"uid {uid}", f"uid {uid}", uid),
                b"r",
                "1",
                0.0,
            )
            for uid in uids
        ]

    def all(self) -> list[Process]:
        return self._all

    def trainers(self, process: Process) -> list[Process]:
        return []


class Checking:
    """Outputs that answer a check at once, but for the owner whose process was stopped."""

    wants_records = False

    def check_export(self, path, export_type, owner, anywhere, done) -> None:
        if owner.uid != HANGING:
            done(path)


class NoStreams:
    def id_of(self, process, session_id) -> str:
        return session_id

    async def opened(self, session_id, timeout_s) -> tuple[str, ...]:
        return ("/exports/file",)


def start(tmp_path, *uids: int, timeout_s: float = 1.0):
    """Return the reply to a start for all, and the uids of the processes that were told."""
    told: list[int] = []

    def send(process, command, message_id) -> bool:
        told.append(process.peer.uid)
        answer = Answer(True, "done", session_id="s")
        asyncio.get_running_loop().call_soon(commander.answered, process, message_id, answer)
        return True

    commander = Commander(send)
    approvals = Approvals(tmp_path)
    monitoring = Monitoring(Processes(*uids), NoStreams(), Checking(), approvals, commander, "node")
    request = MonitorRequest("start", {"log_file": "/exports"}, timeout_s=timeout_s)
    try:
        return asyncio.run(monitoring.carry_out(request, OPERATOR)), told
    finally:
        approvals.close()


def test_a_check_that_hangs_costs_the_rows_of_its_owner_only(tmp_path):
    reply, told = start(tmp_path, HANGING, PROMPT)
    assert {row.pid: row.ok for row in reply.rows} == {HANGING: False, PROMPT: True}
    assert "did not end in time" in reply.rows[0].text
    assert told == [PROMPT]


def test_nothing_is_started_when_no_check_ends_in_time(tmp_path):
    with pytest.raises(SinkError, match="did not end in time"):
        start(tmp_path, HANGING, timeout_s=0.3)
