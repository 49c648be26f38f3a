"""What a message costs whoever sent it."""

from __future__ import annotations

import pytest

from msmon.daemon.connection import STRANGERS_S, status_refund_s


@pytest.mark.parametrize(
    ("took_s", "strangers", "charged_s"),
    [
        (0.01, 1.0, 0.01),
        (1.0, 1.0, STRANGERS_S),
        (1.0, 0.5, 0.5 + STRANGERS_S),
        (1.0, 0.0, 1.0),
    ],
)
def test_a_status_is_paid_for_own_processes_and_a_flat_price_for_others(
    took_s: float, strangers: float, charged_s: float
) -> None:
    assert took_s - status_refund_s(took_s, strangers) == pytest.approx(charged_s)
