"""A simulated step as the bytes that MSPTI would write, ready to be stamped and copied.

Sorting a step's records by the time they are reported, packing them and pointing their
texts to C strings happens once. Each following step only moves times and ids forward, so
that one Python thread can record hundreds of thousands of records a second.
"""

from __future__ import annotations

import collections
import ctypes
from collections.abc import Collection, Sequence

import numpy as np

from msmon.records.batch import Column
from msmon.records.kinds import ActivityKind
from msmon.records.layout import TEXT_FIELDS
from msmon.simulation.ledger import Ledger
from msmon.simulation.step_markers import STEP_RANGE
from msmon.simulation.timeline import StepRecords

TIME_FIELDS = ("start_ns", "end_ns", "timestamp_ns")
KEPT_STEP_NAMES = 65_536
"""Names of steps that are kept in memory. Buffers hold the records of far fewer steps."""


class CStrings:
    """NUL-terminated strings that records point to. They live as long as this object."""

    def __init__(self) -> None:
        self._kept: dict[str, ctypes.Array[ctypes.c_char]] = {}
        self._step_names: collections.deque[ctypes.Array[ctypes.c_char]] = collections.deque(
            maxlen=KEPT_STEP_NAMES
        )

    def address(self, text: str) -> int:
        """Return the address of a text; the same text always has the same one."""
        if text not in self._kept:
            self._kept[text] = ctypes.create_string_buffer(text.encode())
        return ctypes.addressof(self._kept[text])

    def step_name_address(self, step: int) -> int:
        """Return the address of the name of a step's range."""
        name = ctypes.create_string_buffer(STEP_RANGE.replace("*", str(step)).encode())
        self._step_names.append(name)
        return ctypes.addressof(name)


class Stamp:
    """The 64-bit fields of one meaning in an image: what they hold and where they are."""

    def __init__(self, byte_positions: Sequence[Column], values: Sequence[Column]) -> None:
        positions = np.concatenate([np.zeros(0, dtype=np.int64), *byte_positions])
        words = positions[:, np.newaxis] // 4 + np.arange(2)  # fields are only 4-byte aligned
        self._words: Column = words.astype(np.int32)
        self._values: Column = np.concatenate([np.zeros(0, dtype=np.uint64), *values])

    def write(self, image_words: Column, base: int) -> None:
        """Set every field to its value plus ``base``."""
        moved = self._values + np.uint64(base)
        image_words[self._words] = moved.view(np.uint32).reshape(-1, 2)


class StepImage:
    """One step's records of all enabled kinds, in the order in which they are reported.

    ``data`` holds the packed records (uint8); record i lies at ``offsets[i]:offsets[i+1]``
    and is reported ``report_ns[i]`` after the step's origin. ``ledger_rows``, ``duration_ns``
    and ``new_correlation_ids`` (0: none drawn) have one item per record too.
    """

    def __init__(
        self,
        parts: Sequence[StepRecords],
        disabled_domains: Collection[str],
        strings: CStrings,
        ledger: Ledger,
    ) -> None:
        parts = [_without_domains(part, disabled_domains) for part in parts]
        report_ns = _joined([_report_ns(part) for part in parts], np.int64)
        sizes = _joined(
            [np.full(len(part.batch), part.batch.records.itemsize) for part in parts], np.int64
        )
        order = np.argsort(report_ns, kind="stable")
        self.report_ns: Column = report_ns[order]
        self.offsets: Column = np.concatenate(([0], np.cumsum(sizes[order]))).astype(np.int64)
        positions = np.empty(len(order), dtype=np.int64)
        positions[order] = self.offsets[:-1]
        self.ledger_rows: Column = _joined([ledger.rows(part) for part in parts], np.int64)[order]
        self.duration_ns: Column = _joined([part.duration_ns for part in parts], np.int64)[order]
        self.new_correlation_ids: Column = _joined([_drawn_ids(part) for part in parts], np.uint64)[
            order
        ]
        ends = np.cumsum([len(part.batch) for part in parts], dtype=np.int64)
        self._places = [
            positions[end - len(part.batch) : end] for part, end in zip(parts, ends.tolist())
        ]
        self.data: Column = np.zeros(int(self.offsets[-1]), dtype=np.uint8)
        self._pack(parts, strings)
        self._collect_stamps(parts)

    def _pack(self, parts: Sequence[StepRecords], strings: CStrings) -> None:
        image = self.data.view(np.uint64)
        for part, places in zip(parts, self._places):
            addresses = np.array(
                [strings.address(text) for text in part.batch.strings], dtype=np.uint64
            )
            records = part.batch.records.copy()
            for field in TEXT_FIELDS[part.batch.kind]:
                records[field] = addresses[records[field]]
            words = records.view(np.uint64).reshape(len(records), records.itemsize // 8)
            image[places[:, np.newaxis] // 8 + np.arange(words.shape[1])] = words

    def _collect_stamps(self, parts: Sequence[StepRecords]) -> None:
        found: dict[str, tuple[list[Column], list[Column]]] = {
            meaning: ([], []) for meaning in ("time", "correlation", "marker", "step name")
        }
        for part, places in zip(parts, self._places):
            records = part.batch.records
            for field, (_, offset, *_) in (records.dtype.fields or {}).items():
                chosen = places + offset
                values = records[field]
                if field in TIME_FIELDS:
                    meaning = "time"
                elif field == "correlation_id":
                    meaning = "correlation"
                elif field == "id":
                    meaning = "marker"
                elif field == "name" and STEP_RANGE in part.batch.strings:
                    meaning = "step name"
                    chosen = chosen[values == part.batch.strings.index(STEP_RANGE)]
                    values = np.zeros(len(chosen), dtype=np.uint64)
                else:
                    continue
                found[meaning][0].append(chosen)
                found[meaning][1].append(values)
        self._times = Stamp(*found["time"])
        self._correlations = Stamp(*found["correlation"])
        self._markers = Stamp(*found["marker"])
        self._step_names = Stamp(*found["step name"])

    def stamp(
        self, origin_ns: int, correlation_base: int, marker_base: int, step_name_address: int
    ) -> None:
        """Make this the image of the step that begins at ``origin_ns`` (epoch)."""
        words = self.data.view(np.uint32)
        self._times.write(words, origin_ns)
        self._correlations.write(words, correlation_base)
        self._markers.write(words, marker_base)
        self._step_names.write(words, step_name_address)


def _joined(columns: Sequence[Column], dtype: type[np.generic]) -> Column:
    joined: Column = np.concatenate([np.zeros(0, dtype=dtype), *columns]).astype(dtype)
    return joined


def _without_domains(part: StepRecords, disabled_domains: Collection[str]) -> StepRecords:
    if part.batch.kind != ActivityKind.Marker or not disabled_domains:
        return part
    kept_texts = np.array([text not in disabled_domains for text in part.batch.strings])
    mask = kept_texts[part.domain_text]
    return StepRecords(
        part.batch.select(mask),
        part.event_text[mask],
        part.domain_text[mask],
        part.duration_ns[mask],
        part.device_id[mask],
    )


def _report_ns(part: StepRecords) -> Column:
    field = "timestamp_ns" if part.batch.kind == ActivityKind.Marker else "end_ns"
    reported: Column = part.batch.records[field].astype(np.int64)
    return reported


_DRAWING_KINDS = frozenset(
    {
        ActivityKind.Kernel,
        ActivityKind.Communication,
        ActivityKind.Memory,
        ActivityKind.MemSet,
        ActivityKind.MemCpy,
    }
)
"""Kinds whose events draw a new correlation id; API records carry the last one drawn."""


def _drawn_ids(part: StepRecords) -> Column:
    if part.batch.kind in _DRAWING_KINDS:
        drawn: Column = part.batch.records["correlation_id"]
        return drawn
    return np.zeros(len(part.batch), dtype=np.uint64)
