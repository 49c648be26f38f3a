"""What keeps a session from being written: when it is tried again, and who waits for it.

An agent hears that a message is safe when every output of its session holds it. So one output
that hangs would keep the acknowledgements of all others from the agent, whose memory is bounded:
in the end it would drop what they could have written. Three cases:

- An output *fails*, say on a full disk: it says so, and is tried again.
- An output *hangs*: nothing is heard of it. Its process is ended after 30 s and it is tried again.
- An output is *slow*: it goes on, but more and more waits for it.

As long as little waits for it, the agent keeps that, so that it outlives the daemon too. With more
than ``HEAVY_BYTES`` of a session for ``HOLD_UP_S``, its other outputs are in need, and the late one
is left behind: what waits for it counts as dropped there, and is acknowledged once the others hold
it. It is still kept, within the bound of the queue. What the output does write in the end counts as
dropped no longer. Where a session has no other output nobody is in need.

If the daemon ends before the late output has caught up, nobody has any more what was acknowledged
and not written. A note in the state directory keeps how much that was (:class:`LeftBehind`), so
that the next daemon counts it and the output tells of it. A daemon that is killed leaves no note,
and the gap has no number: the note would have to be on the disk before each acknowledgement.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgpack

from msmon.bounds import added
from msmon.daemon.outputs.delivery import Delivery, GapDelivery, Skipped, WindowDelivery, loss_of
from msmon.sessions import Drops, DropStage

FIRST_RETRY_S = 0.1
LAST_RETRY_S = 2.0

HUNG_RETRY_S = 30.0
LAST_HUNG_RETRY_S = 600.0
"""A session in whose call the process hung is not tried again sooner than that, twice as long each
time: meanwhile the output serves its other sessions."""

HOLD_UP_S = 5.0
"""An agent with 50,000 records per second can keep 13 s of them."""

HEAVY_BYTES = 8 << 20
"""An agent stops to send when 16 MiB of its messages are not acknowledged."""

CAUGHT_UP_BYTES = 1 << 20
"""With less than this waiting, an output is waited for again."""


@dataclass
class Block:
    """Why a session can't be written at the moment. The output's thread writes it.

    ``since_s``: when that began (monotonic). ``retry_delay_s``: how long it waits after the next
    failure, twice as long each time.
    """

    since_s: float
    reason: str
    retry_delay_s: float = field(default_factory=lambda: FIRST_RETRY_S)
    hung_delay_s: float = field(default_factory=lambda: HUNG_RETRY_S)

    def next_delay_s(self, hung: bool) -> float:
        """Return how long to wait now, and let the next wait be longer."""
        delay_s = self.retry_delay_s
        self.retry_delay_s = min(2 * self.retry_delay_s, LAST_RETRY_S)
        if hung:
            delay_s = self.hung_delay_s
            self.hung_delay_s = min(2 * self.hung_delay_s, LAST_HUNG_RETRY_S)
        return delay_s


@dataclass
class Lag:
    """How far one output is behind in one session. Guarded by the output's lock."""

    behind: bool = False
    """Whether the others go on without it."""
    until_seq: int = 0
    """Up to here messages are acknowledged, durable or not."""
    _waiting: dict[DropStage, int] = field(default_factory=dict)
    """What is acknowledged and not durable, per stage that it will count under if it is lost."""
    _since_s: float | None = None
    """Since when the output has held up the others (monotonic)."""

    def held_up_s(self, size_bytes: int, now_s: float) -> float:
        """Return how long an output has held up the others; ``size_bytes`` waits for it now.

        Called again and again.
        """
        if size_bytes <= HEAVY_BYTES:
            self._since_s = None
        elif self._since_s is None:
            self._since_s = now_s
        return 0.0 if self._since_s is None else now_s - self._since_s

    def nothing_waits(self) -> None:
        """Note that all is durable."""
        self._since_s, self.behind = None, False

    def acknowledged(self, delivery: Delivery) -> None:
        """Note that a delivery is acknowledged though it is not durable."""
        if delivery.seq > self.until_seq:
            self.until_seq = delivery.seq
            self._count(delivery, +1)

    def settled(self, delivery: Delivery) -> None:
        """Note that a delivery has become durable, or is counted as dropped for good."""
        without_number = isinstance(delivery, WindowDelivery) and delivery.found_here
        if delivery.seq <= self.until_seq and not without_number:
            self._count(delivery, -1)

    @property
    def drops(self) -> Drops:
        """What counts as dropped until it is durable."""
        return {stage: count for stage, count in self._waiting.items() if count}

    def _count(self, delivery: Delivery, sign: int) -> None:
        loss = loss_of(delivery, DropStage.DISK)
        if loss is not None:
            stage, records = loss
            waiting = self._waiting.get(stage, 0) + sign * sum(records.values())
            self._waiting[stage] = max(0, waiting)


@dataclass(frozen=True)
class _Loss:
    """What one message held."""

    seq: int
    stage: str
    records: Mapping[str, int]


@dataclass(frozen=True)
class LeftBehind:
    """The messages of a session from ``first_seq`` to ``last_seq`` that nobody has any more."""

    first_seq: int = 1
    last_seq: int = 0
    losses: tuple[_Loss, ...] = ()

    @classmethod
    def of(cls, pending: Iterable[Delivery], until_seq: int) -> LeftBehind:
        """Return what is acknowledged, up to ``until_seq``, among what is not durable."""
        first_seq = last_seq = 0
        losses: list[_Loss] = []
        for delivery in pending:
            if delivery.seq > until_seq:
                break
            if isinstance(delivery, WindowDelivery) and delivery.found_here:
                continue  # it has no number of its own
            lost = _lost_with(delivery)
            if lost is None:
                return cls()
            first_seq, last_seq = first_seq or _begin_of(delivery), delivery.seq
            losses += lost
        return cls(first_seq, last_seq, tuple(losses)) if last_seq else cls()

    def between(self, first_seq: int, last_seq: int) -> dict[DropStage, dict[str, int]] | None:
        """Return stage → kind → records of these messages; None: not all of them are known."""
        if not self.first_seq <= first_seq <= last_seq <= self.last_seq:
            return None
        lost: dict[DropStage, dict[str, int]] = {}
        for loss in self.losses:
            if first_seq <= loss.seq <= last_seq:
                records = lost.setdefault(DropStage(loss.stage), {})
                for kind, count in loss.records.items():
                    records[kind] = added(records.get(kind, 0), count)
        return lost

    def encode(self) -> bytes:
        """Return the bytes of the note."""
        losses = [[item.seq, item.stage, dict(item.records)] for item in self.losses]
        packed: bytes = msgpack.packb([self.first_seq, self.last_seq, losses])
        return packed

    @classmethod
    def decode(cls, value: bytes) -> LeftBehind:
        """Return what a note says: nothing where there is none, or none that can be read."""
        try:
            first_seq, last_seq, losses = msgpack.unpackb(value)
            return cls(first_seq, last_seq, tuple(_Loss(*item) for item in losses))
        except (msgpack.UnpackException, ValueError, TypeError):
            return cls()


def _begin_of(delivery: Delivery) -> int:
    first_seq = delivery.first_seq if isinstance(delivery, Skipped) else 0
    return first_seq or delivery.seq


def _lost_with(delivery: Delivery) -> list[_Loss] | None:
    """Return what goes with a delivery, [] for nothing; None: how much is not known."""
    if isinstance(delivery, (GapDelivery, Skipped)):
        gap = delivery.gap
        if gap is None:
            return []
        if gap.records is None or not isinstance(gap.stage, DropStage):
            return None
        return [_Loss(delivery.seq, gap.stage.value, gap.records)]
    loss = loss_of(delivery, DropStage.DISK)
    return [] if loss is None else [_Loss(delivery.seq, loss[0].value, loss[1])]
