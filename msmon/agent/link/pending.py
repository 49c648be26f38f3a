"""Commands that the daemon has sent and that are not answered yet.

The collector carries them out and answers. When it can't, because a call into MSPTI does not
return, the link answers in its place, so that whoever asked is not left waiting.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from msmon.bus.messages import Answer, Command
from msmon.threads import Lock

ANSWER_LIMIT_S = 8.0
"""Commands are answered within this time; who asks waits 10 s unless told otherwise."""

_MAX_SEEN = 1000
_REPEATED = Answer(True, "received before, through the framework")


@dataclass
class PendingCommand:
    """A command on its way to the collector.

    Either the collector begins it or the link cancels it. Whoever takes ``_fate`` first has
    decided, and nobody gives it back.
    """

    message_id: str
    action: str
    fields: dict[str, Any]
    request_id: str = ""
    ranks: list[int] = field(default_factory=list)
    since_monotonic_s: float = field(default_factory=time.monotonic)
    _fate: Any = field(default_factory=Lock, repr=False)

    def begin(self) -> bool:
        """Claim the command for carrying it out; False when it was cancelled."""
        return bool(self._fate.acquire(blocking=False))

    def cancel(self) -> bool:
        """Claim the command for dropping it; False when it has begun."""
        return bool(self._fate.acquire(blocking=False))


class SeenRequests:
    """The ids of requests that have reached this process, so that each is carried out once.

    The same request may come from the daemon and through the framework. MindSpore hands it over
    again at every step. Written by any thread, under ``_lock``.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._ids: OrderedDict[str, None] = OrderedDict()

    def is_new(self, request_id: str) -> bool:
        """Note a request; False when it was noted before. One without an id is always new."""
        if not request_id:
            return True
        with self._lock:
            if request_id in self._ids:
                return False
            self._ids[request_id] = None
            if len(self._ids) > _MAX_SEEN:
                self._ids.popitem(last=False)
            return True


class PendingCommands:
    """The commands that still need an answer. Written by the link's thread only.

    ``stuck_in`` returns the call in which the collector hangs; empty if it does not.
    """

    def __init__(
        self,
        submit: Callable[[PendingCommand], None],
        stuck_in: Callable[[], str],
        seen: SeenRequests | None = None,
    ) -> None:
        self._submit = submit
        self._stuck_in = stuck_in
        self._seen = seen or SeenRequests()
        self._commands: dict[str, PendingCommand] = {}
        self._repeated: list[str] = []

    def __len__(self) -> int:
        return len(self._commands)

    def accept(self, message_id: str, command: Command) -> None:
        """Take a command and hand it to the collector."""
        pending = PendingCommand(
            message_id, command.action, command.fields, command.request_id, command.ranks
        )
        if not self._seen.is_new(command.request_id):
            self._repeated.append(message_id)
            return
        self._commands[message_id] = pending
        self._submit(pending)

    def answered(self, message_id: str) -> bool:
        """Forget a command because its answer is here; False when it was answered before."""
        return self._commands.pop(message_id, None) is not None

    def overdue(self) -> list[tuple[str, Answer]]:
        """Return answers to commands that came twice or that the collector won't answer in time."""
        repeated, self._repeated = self._repeated, []
        return [(message_id, _REPEATED) for message_id in repeated] + self._late()

    def _late(self) -> list[tuple[str, Answer]]:
        if not self._commands:
            return []
        stuck = self._stuck_in()
        oldest_s = time.monotonic() - ANSWER_LIMIT_S
        late = [
            command
            for command in self._commands.values()
            if stuck or command.since_monotonic_s < oldest_s
        ]
        answers = [(command.message_id, _excuse(command, stuck)) for command in late]
        for command in late:
            del self._commands[command.message_id]
        return answers


def _excuse(command: PendingCommand, stuck: str) -> Answer:
    where = f"stuck in {stuck}" if stuck else "busy"
    if command.cancel():
        return Answer(
            False,
            f"{command.action} was not carried out: the agent is {where}",
            "the job goes on; try again when status no longer says so",
        )
    return Answer(
        False,
        f"{command.action} has begun and is not done: the agent is {where}",
        "the job goes on; status will show when it is done",
    )
