"""One accepted connection, and what its messages cost.

Each message is paid twice, because there are two ways to do harm. Its price in credit bounds
how many requests one connection makes. Its time bounds how much of the loop one owner takes
over all connections (``Resource.LOOP_S``).
"""

from __future__ import annotations

from dataclasses import dataclass

from msmon.bus import messages
from msmon.bus.messages import Message
from msmon.daemon.access.descriptors import Origin

CREDIT = 1000.0
CREDIT_PER_S = 100.0
"""What a connection may spend, at once and per second."""
PRICES: dict[type[Message], float] = {
    messages.Hello: 5.0,
    messages.Goodbye: 1.0,
    messages.Status: 1.0,
    messages.StatusRequest: 5.0,
    messages.VersionRequest: 1.0,
    messages.WindowsRequest: 5.0,
    messages.MonitorRequest: 5.0,
    messages.TraceRequest: 5.0,
}
"""What is not listed costs no credit. Those are the messages of streams: an agent waits for
acknowledgements, so a stream is never faster than the outputs."""
REFUSED_PRICE = 20.0

MESSAGE_S = 20e-6
BYTE_S = 0.5e-9
"""The least time that a message is charged: 20 µs, and 0.5 s for each GB."""


def charged_s(processor_s: float, size_bytes: int) -> float:
    """Return the loop time to charge for a message that took ``processor_s``.

    It is processor time of the loop's thread (``time.thread_time``), not time on the clock, so
    that nobody is cut off because others keep the machine busy. Example, measured with 30
    programs on 2 cores: a batch of 210 KB took 0.29 ms of a core, but 3.9 ms on the clock; a
    heartbeat 0.26 ms and 2.5 ms. A user whose 16 ranks send 20 such batches per second each would
    be charged 1.25 s per second by the clock. A local user regains 0.5 s per second
    (``shares.LIMITS``), so those ranks would be cut off. By the processor they are charged 0.09 s.

    Part of the work is not seen in this thread: libzmq's own thread decrypts, and the kernel
    copies. So there is a least charge. With it a flood uses up the share of a local user at
    25,000 messages or 1 GB per second, even if it cost this thread nothing. The least charge of
    the 16 ranks above is 0.04 s per second.

    What this doesn't bound: where the daemon gets less than half a core, one owner can keep the
    loop busy within its share. The ROUTER takes messages from all connections in turn, so others
    are served more slowly, and are not shut out.
    """
    return max(processor_s, MESSAGE_S + size_bytes * BYTE_S)


STRANGERS_S = 0.02
"""The most that a status is charged for the processes of others, however many they are."""


def status_refund_s(processor_s: float, strangers: float) -> float:
    """Return what a status that took ``processor_s`` is not charged.

    ``strangers`` is the part of all registered processes that are not the asker's, from 0 to 1.
    How many they are is not the asker's fault. Otherwise a user with many processes could have
    everybody else barred who asks for a status. The price that remains, 20 ms, lets a local user
    ask 25 times per second.
    """
    return max(0.0, processor_s * strangers - STRANGERS_S)


@dataclass
class Connection:
    """One accepted connection. Times are on the monotonic clock, in seconds.

    Written on the broker's loop only: by ``Connections``; ``waiting`` by ``Requests``.
    """

    descriptor: int
    origin: Origin | None
    """The other end. None: it had gone before anybody looked."""
    heard_s: float
    owner: str = ""
    """Who pays for it: the owner of its origin, later that of its key. Empty: nobody yet."""
    route: bytes = b""
    address: str = ""
    credential: str = ""
    credit: float = CREDIT
    credit_s: float = 0.0
    """When ``credit`` was last counted."""
    waiting: int = 0
    """Requests whose answer is still being made."""
    ended: bool = False
    """The daemon hung up on it. Messages of it that have already arrived are dropped."""
    logged: bool = False
    """A line about its misdeeds has been written. One per connection is enough."""
    receipt: str = ""
    """What the next question for windows must quote, as long as ``unread_bytes`` are not 0."""
    unread_bytes: int = 0
    """The last answer with windows, of which nobody knows yet that it was read."""
    used_s: float = 0.0
    """Loop time that is not charged to its owner yet. Less than 0 between a refund and the
    charge for the same message."""

    def spend(self, price: float, now_s: float) -> bool:
        """Take ``price`` from the credit, which grows with time. False: it is used up."""
        grown = self.credit + (now_s - self.credit_s) * CREDIT_PER_S
        self.credit, self.credit_s = min(CREDIT, grown) - price, now_s
        return self.credit >= 0
