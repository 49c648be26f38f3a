"""A window as frames, and what may be wrong with them."""

from __future__ import annotations

import numpy as np
import pytest

from msmon.records.merging import merge
from msmon.records.window_frames import (
    OLDER_OPERATOR_DTYPE,
    frames_of,
    older_frames_of,
    older_header_of,
    window_of,
)
from msmon.records.window_header import WindowHeader
from msmon.records.windows import (
    BUCKET_DTYPE,
    DEVICE_DTYPE,
    DIGEST_DTYPE,
    OPERATOR_DTYPE,
    Window,
    operator_rows,
)

HEADER = WindowHeader(3, 0, 1, step=7, kept={"Kernel": 2}, steps=4, step_total_ns=80, digest_step=4)


def window(names: tuple[str, ...] = ("", "allReduce", "group")) -> Window:
    """Return a window with one operation in two sizes."""
    operators = np.zeros(2, OPERATOR_DTYPE)
    operators["kind"], operators["name"], operators["domain"] = 9, 1, len(names) - 1
    operators["count"], operators["total_ns"], operators["max_ns"] = [2, 3], [20, 90], [10, 40]
    operators["min_ns"], operators["size_class"] = [9, 20], [10, 22]
    buckets = np.zeros(2, BUCKET_DTYPE)
    buckets["operator"], buckets["bucket"], buckets["count"] = [0, 1], 8200, [2, 3]
    devices = np.zeros(1, DEVICE_DTYPE)
    devices["busy_ns"] = 5
    collectives = np.zeros(2, DIGEST_DTYPE)
    collectives["group"], collectives["operation"], collectives["number"] = 2, 1, [5, 6]
    return Window(
        **HEADER.header_fields(),
        operators=operators,
        buckets=buckets,
        names=names,
        devices=devices,
        collectives=collectives if len(names) > 2 else collectives[:0],
    )


def test_a_row_of_the_digest_has_20_bytes() -> None:
    assert DIGEST_DTYPE.itemsize == 20


def test_a_window_survives_its_frames() -> None:
    sent = window(("", "a\udcffb", "group"))
    received = window_of(HEADER, frames_of(sent))
    for column in ("operators", "buckets", "devices", "collectives"):
        assert getattr(received, column).tolist() == getattr(sent, column).tolist()
    assert received.names == sent.names
    assert received.header_fields() == HEADER.header_fields()


def test_an_older_daemon_gets_sizes_and_communicators_merged_and_no_more() -> None:
    frames = older_frames_of(window())
    assert len(frames) == 3
    assert len(frames[0]) == OLDER_OPERATOR_DTYPE.itemsize
    received = window_of(older_header_of(HEADER), frames)
    (row,) = operator_rows(received)
    assert (row.name, row.domain, row.count, row.total_ns) == ("allReduce", "", 5, 110)
    assert (row.min_ns, row.max_ns, row.size_class) == (9, 40, 0)
    assert received.buckets["count"].tolist() == [5]
    assert (received.step, received.steps, received.digest_step) == (7, 0, -1)


def test_sizes_stay_apart_when_windows_are_merged() -> None:
    merged = merge([window(), window()])
    assert sorted(row.size_class for row in operator_rows(merged)) == [10, 22]
    assert (merged.steps, merged.step_total_ns) == (8, 160)
    assert len(merged.collectives) == 0


@pytest.mark.parametrize(
    ("place", "frame", "message"),
    [
        (0, b"x", "cut short"),
        (1, b"x", "cut short"),
        (3, b"x", "cut short"),
        (4, b"x", "cut short"),
        (0, bytes(20_001 * OPERATOR_DTYPE.itemsize), "too many rows"),
        (2, bytes(40_001), "too many rows"),
        (3, bytes(65 * DEVICE_DTYPE.itemsize), "too many rows"),
        (4, bytes(4097 * DIGEST_DTYPE.itemsize), "too many rows"),
        (0, bytes(OPERATOR_DTYPE.itemsize), "unknown kind"),
        (2, b"", "name that was not sent"),
        (4, np.full(1, 9, np.uint8).tobytes() * 20, "name that was not sent"),
        (0, b"", "operator that was not sent"),
    ],
)
def test_frames_that_do_not_fit_are_refused(place: int, frame: bytes, message: str) -> None:
    frames = list(frames_of(window()))
    frames[place] = frame
    with pytest.raises(ValueError, match=message):
        window_of(HEADER, frames)


@pytest.mark.parametrize("lasted_ns", [float("nan"), float("inf"), -1.0])
def test_a_collective_lasts_a_time(lasted_ns: float) -> None:
    sent = window()
    sent.collectives["lasted_ns"] = lasted_ns
    with pytest.raises(ValueError, match="lasted no time"):
        window_of(HEADER, frames_of(sent))


@pytest.mark.parametrize("count", [0, 2])
def test_too_few_frames_are_refused(count: int) -> None:
    with pytest.raises(ValueError, match="without columns"):
        window_of(HEADER, frames_of(window())[:count])


def test_a_long_name_is_cut() -> None:
    received = window_of(HEADER, frames_of(window(("", "n" * 1_000_000))))
    assert received.names == ("", "n" * 4095 + "…")
