"""Numbers as text."""

from __future__ import annotations

import pytest

from msmon.commands.top.columns import (
    bytes_text,
    change_text,
    count_text,
    duration_text,
    share_text,
)


@pytest.mark.parametrize(
    ("value_ns", "text"),
    [
        (None, "-"),
        (0, "0ns"),
        (999, "999ns"),
        (999.7, "1.00µs"),
        (12_340, "12.3µs"),
        (4_560_000, "4.56ms"),
        (500_000_000, "500ms"),
        (1_200_000_000, "1.20s"),
        (12_345_000_000_000, "12345s"),
    ],
)
def test_durations(value_ns, text):
    assert duration_text(value_ns) == text


@pytest.mark.parametrize(
    ("ratio", "text"),
    [(None, "-"), (1.0, "0%"), (0.999, "0%"), (1.42, "+42%"), (0.5, "-50%"), (12.4, "12x")],
)
def test_changes(ratio, text):
    assert change_text(ratio) == text


def test_shares_sizes_and_counts():
    assert [share_text(share) for share in (None, 0.0, 0.1843)] == ["-", "0.0%", "18.4%"]
    assert [bytes_text(size) for size in (None, 512, 4 << 20, 2 << 50)] == [
        "-",
        "512",
        "4M",
        "2048T",
    ]
    assert [count_text(count) for count in (None, 20, 2.5, 123_456)] == ["-", "20", "2.5", "123k"]
