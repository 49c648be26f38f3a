"""A window as frames of bytes, for the wire and between processes.

Its header travels as a message; these are its columns. A daemon that speaks protocol 1.1 knows
three frames only, without sizes, communicators, devices and collectives. It gets a window in which
rows that only these tell apart are merged: its outputs would show the last one for all.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from msmon.records.batch import Column, decode_texts, encode_texts
from msmon.records.collectives import COLLECTIVE_KINDS
from msmon.records.kinds import ActivityKind
from msmon.records.merging import merge
from msmon.records.window_header import WindowHeader
from msmon.records.windows import (
    BUCKET_DTYPE,
    DEVICE_DTYPE,
    DIGEST_DTYPE,
    MAX_COLLECTIVES,
    MAX_DEVICES,
    MAX_NAMES,
    MAX_ROWS,
    OPERATOR_DTYPE,
    Window,
    cut_name,
)

OLDER_FRAMES = 3
"""Operators, buckets and names, as protocol 1.1 has them."""

OLDER_OPERATOR_DTYPE = np.dtype(
    [(name, OPERATOR_DTYPE[name]) for name in OPERATOR_DTYPE.names or () if name != "size_class"]
)

_OLDER_FIELDS = (
    *("index", "start_ns", "end_ns", "step", "received", "kept", "untimed", "overflow_names"),
)

_KINDS = [int(kind) for kind in ActivityKind]
_COLLECTIVE_KINDS = [int(kind) for kind in COLLECTIVE_KINDS]


def frames_of(window: Window) -> tuple[bytes, ...]:
    """Return operators, buckets, names, devices and collectives."""
    columns = (window.devices, window.collectives)
    return (
        window.operators.tobytes(),
        window.buckets.tobytes(),
        encode_texts(window.names),
        *(column.tobytes() for column in columns),
    )


def older_frames_of(window: Window) -> tuple[bytes, ...]:
    """Return operators, buckets and names for a daemon that speaks protocol 1.1 or less."""
    operators = window.operators.copy()
    operators["size_class"] = 0
    operators["domain"][np.isin(operators["kind"], _COLLECTIVE_KINDS)] = 0
    merged = merge([dataclasses.replace(window, operators=operators)])
    rows = np.zeros(len(merged.operators), OLDER_OPERATOR_DTYPE)
    for name in OLDER_OPERATOR_DTYPE.names or ():
        rows[name] = merged.operators[name]
    return rows.tobytes(), merged.buckets.tobytes(), encode_texts(merged.names)


def older_header_of(header: WindowHeader) -> WindowHeader:
    """Return the header of a window as protocol 1.1 has it."""
    fields = {name: getattr(header, name) for name in _OLDER_FIELDS}
    return WindowHeader(**fields)


def window_of(header: WindowHeader, frames: Sequence[bytes]) -> Window:
    """Rebuild a window. Raises ValueError when the frames don't fit.

    A name longer than ``MAX_NAME_CHARACTERS`` is cut.
    """
    if len(frames) < OLDER_FRAMES:
        raise ValueError("a window without columns")
    if exceeds_bounds(frames):
        raise ValueError("a window with too many rows")
    rows = _operators(frames)
    buckets = _column(frames[1], BUCKET_DTYPE)
    names = tuple(map(cut_name, decode_texts(frames[2])))
    devices, collectives = (
        _column(frame, dtype)
        for frame, dtype in zip([*frames[3:5], b"", b""], (DEVICE_DTYPE, DIGEST_DTYPE))
    )
    _check(rows, buckets, names, collectives)
    return Window(
        **header.header_fields(),
        operators=rows,
        buckets=buckets,
        names=names,
        devices=devices,
        collectives=collectives,
    )


def exceeds_bounds(frames: Sequence[bytes]) -> bool:
    """Whether frames have more rows or names than an agent sends; cheap, nothing is decoded.

    Texts are separated by NUL.
    """
    if len(frames) < OLDER_FRAMES:
        return False
    operators = OLDER_OPERATOR_DTYPE if len(frames) == OLDER_FRAMES else OPERATOR_DTYPE
    columns = zip(
        (frames[0], *frames[3:5]),
        (operators, DEVICE_DTYPE, DIGEST_DTYPE),
        (MAX_ROWS, MAX_DEVICES, MAX_COLLECTIVES),
    )
    too_many = any(len(frame) // dtype.itemsize > most for frame, dtype, most in columns)
    return too_many or frames[2].count(b"\0") >= MAX_NAMES


def _operators(frames: Sequence[bytes]) -> Column:
    if len(frames) > OLDER_FRAMES:
        return _column(frames[0], OPERATOR_DTYPE)
    older = _column(frames[0], OLDER_OPERATOR_DTYPE)
    rows = np.zeros(len(older), OPERATOR_DTYPE)
    for name in OLDER_OPERATOR_DTYPE.names or ():
        rows[name] = older[name]
    return rows


def _column(frame: bytes, dtype: np.dtype[np.void]) -> Column:
    if len(frame) % dtype.itemsize:
        raise ValueError("a window frame is cut short")
    return np.frombuffer(frame, dtype)


def _check(rows: Column, buckets: Column, names: Sequence[str], collectives: Column) -> None:
    """Raise ValueError where a column refers to what was not sent."""
    if not np.isin(rows["kind"], _KINDS).all():
        raise ValueError("a window has an operator of an unknown kind")
    for column, fields in ((rows, ("name", "domain")), (collectives, ("group", "operation"))):
        if len(column) and max(int(column[name].max()) for name in fields) >= len(names):
            raise ValueError("a window refers to a name that was not sent")
    if len(buckets) and int(buckets["operator"].max()) >= len(rows):
        raise ValueError("a window bucket refers to an operator that was not sent")
    if not np.isfinite(collectives["lasted_ns"]).all() or (collectives["lasted_ns"] < 0).any():
        raise ValueError("a window has a collective that lasted no time")
