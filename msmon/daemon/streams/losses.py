"""What the daemon itself loses of a stream: messages it can't read, sessions it does not take.

Every message of a stream has one of three ends. It is acknowledged because the outputs hold it. It
is refused for good: then it is counted here, and acknowledged, because the agent would send it
again for ever and would never come to what lies behind it. Or it is tried again, because the agent
has to say hello first. Example of the second: an agent of a newer version sends a message with a
field that this daemon does not know.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

from msmon.bounds import MOST, added
from msmon.bus.messages import (
    GapReport,
    Records,
    SessionClosed,
    SessionNote,
    SessionOpened,
    WindowReport,
)
from msmon.daemon.outputs.delivery import (
    BatchDelivery,
    Closing,
    Delivery,
    GapDelivery,
    WindowDelivery,
)
from msmon.records.kinds import ActivityKind
from msmon.sessions import Drops, DropStage, Gap, SessionEnd

STREAM_TYPES = (SessionOpened, Records, WindowReport, SessionNote, GapReport, SessionClosed)
StreamMessage = Union[SessionOpened, Records, WindowReport, SessionNote, GapReport, SessionClosed]
"""Messages that have a number in the stream of a session."""

MAX_REFUSED_PER_PROCESS = 8
"""Refused sessions that are remembered. The next one pushes out the oldest."""

_MAX_ID_CHARACTERS = 64
_KNOWN_KINDS = {int(kind): kind.name for kind in ActivityKind}


@dataclass(frozen=True)
class Unreadable:
    """A message of a stream that is not valid, as far as its header says what it is."""

    type: str
    session_id: str
    """The agent's id."""
    seq: int
    records: dict[str, int] | None
    """Kind name → records that it held; None: nobody knows."""
    reason: str

    @property
    def opens(self) -> bool:
        """Whether it was to open the session. Nothing of such a session can be taken."""
        return self.type == SessionOpened.TYPE

    def delivery(self, session_id: str) -> Delivery:
        """Return what takes its place in the outputs, where the session is ``session_id``."""
        now_ns = time.time_ns()
        if self.type == SessionClosed.TYPE:
            return Closing(session_id, self.seq, SessionEnd(now_ns, "unreadable"))
        stage = DropStage.WINDOWS if self.type == WindowReport.TYPE else DropStage.REFUSED
        reason = f"a message that this daemon can't read: {self.reason}"
        gap = Gap(stage, now_ns, now_ns, self.records, reason)
        return GapDelivery(session_id, self.seq, gap)


def unreadable(
    header: Mapping[str, Any], payload: Sequence[bytes], reason: str
) -> Unreadable | None:
    """Return what an invalid message was; None where it has no place in a stream.

    ``header`` is the plain map of its first frame, of which nothing was checked yet.
    """
    session_id, seq, kind = header.get("session_id"), header.get("seq"), header.get("type")
    if not isinstance(session_id, str) or not 0 < len(session_id) <= _MAX_ID_CHARACTERS:
        return None
    if type(seq) is not int or not 0 < seq <= MOST or not isinstance(kind, str):
        return None
    return Unreadable(kind, session_id, seq, _records_in(header, payload), reason)


def _records_in(header: Mapping[str, Any], payload: Sequence[bytes]) -> dict[str, int] | None:
    kind, number, count = header.get("type"), header.get("kind"), header.get("count")
    if kind == SessionNote.TYPE:
        return {}
    if kind != Records.TYPE or type(number) is not int or type(count) is not int:
        return None
    most = len(payload[0]) if payload else 0  # a record of any kind has a byte at least
    return {_KNOWN_KINDS.get(number, f"kind {number}"[:64]): min(max(0, count), most)}


def lost_in(message: StreamMessage | Unreadable, delivery: Delivery) -> Drops:
    """Return what the daemon has lost of a message, where a gap stands in its place.

    A gap that the agent reports is no loss of the daemon: the agent has counted it.
    """
    if not isinstance(delivery, GapDelivery) or isinstance(message, GapReport):
        return {}
    records = delivery.gap.records
    return {delivery.gap.stage: None if records is None else added(*records.values())}


def refused_in(delivery: Delivery) -> Drops:
    """Return what is lost with a delivery of a session that the daemon does not take."""
    if isinstance(delivery, BatchDelivery):
        return {DropStage.REFUSED: delivery.count}
    if isinstance(delivery, WindowDelivery):
        return {DropStage.WINDOWS: added(*delivery.header.kept.values())}
    return {}
