"""Commands on their way to agents, and the answers that come back."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from msmon.bus.messages import Answer, Command
from msmon.bus.words import AgentAction
from msmon.daemon.process import Life, Process

SendCommand = Callable[[Process, Command, str], bool]
"""Sends a command under an id; False when the connection is gone or full."""


@dataclass
class _Pending:
    process: Process
    answer: asyncio.Future[Answer]


class Commander:
    """Asks agents and waits for what they say. Every method runs on the broker's loop."""

    def __init__(self, send: SendCommand) -> None:
        self._send = send
        self._pending: dict[str, _Pending] = {}
        self._ids = itertools.count(1)

    async def ask(
        self,
        process: Process,
        action: AgentAction,
        fields: dict[str, Any],
        deadline_s: float,
        request_id: str = "",
        ranks: Sequence[int] = (),
    ) -> Answer:
        """Send a command and return its answer; where none comes in time, one that says so.

        ``request_id`` and ``ranks``: see :class:`Command`.
        """
        command_id = f"d{next(self._ids)}"
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._pending[command_id] = _Pending(process, future)
        try:
            command = Command(action, fields, request_id, list(ranks))
            if not self._send(process, command, command_id):
                return Answer(
                    False, "the command could not be sent: the connection is gone or full"
                )
            return await asyncio.wait_for(future, max(0.0, deadline_s - time.monotonic()))
        except (asyncio.TimeoutError, TimeoutError):
            return Answer(False, "no answer in time" + _stuck(process))
        finally:
            del self._pending[command_id]

    def answered(self, process: Process, message_id: str, answer: Answer) -> None:
        """Take the answer of a process to a command; a late or foreign one is dropped."""
        pending = self._pending.get(message_id)
        if pending is not None and pending.process is process and not pending.answer.done():
            pending.answer.set_result(answer)

    def gone(self, process: Process) -> None:
        """Note that a process is lost or ended: nobody needs to wait for its answers."""
        text = f"the process {'was lost' if process.life is Life.LOST else 'ended'} meanwhile"
        for pending in self._pending.values():
            if pending.process is process and not pending.answer.done():
                pending.answer.set_result(Answer(False, text))


def _stuck(process: Process) -> str:
    if process.life is Life.SILENT:
        silent_s = time.monotonic() - process.last_seen_s
        return (
            f"; the process runs and has said nothing for {silent_s:.0f} s: native code keeps "
            "Python's lock, or it is stopped. It may carry the command out later"
        )
    stuck_in = process.status.stuck_in if process.status is not None else ""
    return f"; the process is stuck in {stuck_in}" if stuck_in else ""
