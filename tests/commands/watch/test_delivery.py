"""A queue before an action that takes time."""

from __future__ import annotations

import threading

from msmon.commands.watch import delivery as delivery_module
from msmon.commands.watch.delivery import Delivery


class Slow:
    """Sends nothing before it may, and never two at once."""

    def __init__(self) -> None:
        self.may_go_on = threading.Event()
        self.begun = threading.Event()
        self.sent: list[int] = []
        self.at_once = 0
        self._busy = threading.Lock()

    def send(self, item: int) -> str:
        assert self._busy.acquire(blocking=False)
        self.begun.set()
        self.may_go_on.wait(20)
        self.sent.append(item)
        self._busy.release()
        return "" if item % 2 else f"{item} failed"

    def abort(self) -> None:
        self.may_go_on.set()


def test_items_are_sent_in_order_and_failures_told_once(wait_for) -> None:
    sender = Slow()
    sender.may_go_on.set()
    with Delivery("--on-verdict", sender) as delivery:
        for item in range(5):
            delivery.give(item)
        wait_for(lambda: len(sender.sent) == 5, "all items")
    assert sender.sent == [0, 1, 2, 3, 4]
    assert delivery.news() == ["0 failed", "2 failed", "4 failed"]
    assert delivery.news() == []


def test_what_finds_the_queue_full_is_dropped_counted_and_told() -> None:
    sender = Slow()
    with Delivery("--on-verdict", sender, most_waiting=3) as delivery:
        delivery.give(1)
        assert sender.begun.wait(20)
        for item in (3, 5, 7, 9, 11):
            delivery.give(item)
        assert delivery.dropped == 2
        assert delivery.news() == ["2 verdicts were dropped so far: it takes too long"]
        assert delivery.news() == []
        sender.may_go_on.set()
    assert sender.sent == [1, 3, 5, 7]


def test_the_end_aborts_an_action_that_hangs(monkeypatch) -> None:
    monkeypatch.setattr(delivery_module, "GRACE_S", 0.05)
    sender = Slow()
    with Delivery("--on-verdict", sender) as delivery:
        delivery.give(1)
        assert sender.begun.wait(20)
    assert sender.sent == [1]
