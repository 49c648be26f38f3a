"""A queue and a thread for an action that takes time, so that watching goes on meanwhile."""

from __future__ import annotations

import queue
import threading
from collections import deque
from typing import Generic, Optional, Protocol, TypeVar

MOST_WAITING = 64
"""Items that wait. Verdicts are rare: so many only come together while an action hangs."""

GRACE_S = 5.0
"""How long the action that runs may go on when the watching ends."""

ABORT_S = 5.0

Item = TypeVar("Item", contravariant=True)


class Sender(Protocol[Item]):
    """Does the action for one item at a time. The thread of a :class:`Delivery` calls ``send``."""

    def send(self, item: Item) -> str:
        """Do it; return why it failed, or nothing."""

    def abort(self) -> None:
        """Have ``send`` return soon, and each later one at once. Called by another thread."""


Given = TypeVar("Given")


class Delivery(Generic[Given]):
    """Gives items to a sender, one after another. Use it as a context manager.

    The owner's thread gives items and takes what is to be told. What finds the queue full is
    dropped, counted and told, and so is what still waits at the end.
    """

    def __init__(self, name: str, sender: Sender[Given], most_waiting: int = MOST_WAITING) -> None:
        self.dropped = 0
        self._name = name
        self._sender = sender
        self._waiting: queue.Queue[Optional[Given]] = queue.Queue(most_waiting + 1)
        self._most_waiting = most_waiting
        self._told_dropped = 0
        self._failures: deque[str] = deque(maxlen=MOST_WAITING)
        """Written by the thread, taken by the owner."""
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"watch {name}", daemon=True)

    @property
    def name(self) -> str:
        """What it is called where its failures are told."""
        return self._name

    def __enter__(self) -> Delivery[Given]:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ending.set()
        self._waiting.put_nowait(None)  # there is always room for this one
        self._thread.join(GRACE_S)
        if self._thread.is_alive():
            self._sender.abort()
            self._thread.join(ABORT_S)
        while not self._waiting.empty():
            self.dropped += self._waiting.get_nowait() is not None

    def give(self, item: Given) -> None:
        """Have an item sent; returns at once."""
        if self._waiting.qsize() >= self._most_waiting:
            self.dropped += 1
        else:
            self._waiting.put_nowait(item)

    def news(self) -> list[str]:
        """Return what is to be told since the last call."""
        told = []
        while self._failures:
            told.append(self._failures.popleft())
        if self.dropped > self._told_dropped:
            self._told_dropped = self.dropped
            told.append(f"{self.dropped} verdicts were dropped so far: it takes too long")
        return told

    def _run(self) -> None:
        while True:
            item = self._waiting.get()
            if item is None:
                return
            failure = self._sender.send(item)
            if failure:
                self._failures.append(failure)
