"""Activity records as columns, for tests of outputs.

``kernels(n)``  a batch of kernel records
``job(...)``    the batches of every rank of a small training job with step markers,
                collectives that end together, and one rank that comes late to them
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from msmon.kinds import ActivityKind, MarkerFlag, SourceKind
from msmon.records import DTYPES, TEXT_FIELDS, Batch
from msmon.sessions import MonitorSettings, ProcessInfo, SessionInfo

START_NS = 1_790_000_000_000_000_000
GROUPS = ("group_name_0", "group_name_17")
STEP_NS = 10_000_000
COLLECTIVES_PER_STEP = 6


def make_batch(kind: ActivityKind, rows: Sequence[Mapping[str, Any]]) -> Batch:
    """Build a batch from one mapping per record; text fields hold texts."""
    records = np.zeros(len(rows), DTYPES[kind])
    records["kind"] = kind
    texts = {"": 0}
    for place, row in enumerate(rows):
        for field, value in row.items():
            is_text = field in TEXT_FIELDS[kind]
            records[field][place] = texts.setdefault(value, len(texts)) if is_text else value
    return Batch(kind, records, tuple(texts))


def make_kernels(count: int, seed: int = 1, name_count: int = 50) -> Batch:
    generator = np.random.default_rng(seed)
    records = np.zeros(count, DTYPES[ActivityKind.Kernel])
    records["kind"] = ActivityKind.Kernel
    records["start_ns"] = START_NS + np.cumsum(generator.integers(1000, 3000, count))
    records["end_ns"] = records["start_ns"] + generator.integers(500, 900, count).astype(np.uint64)
    records["stream_id"] = generator.integers(0, 8, count)
    records["correlation_id"] = np.arange(count) + 5
    records["type"] = generator.integers(1, 3, count)
    records["name"] = generator.integers(3, 3 + name_count, count)
    names = [f"MatMul_{number}" for number in range(name_count)]
    return Batch(ActivityKind.Kernel, records, ("", "KERNEL_AICORE", "KERNEL_AIVEC", *names))


def make_session(
    directory: Path, rank: int = 0, session_id: str = "", **settings: Any
) -> SessionInfo:
    process = ProcessInfo("host-a", 4000 + rank, 77, rank=rank)
    fields = {"kinds": "Kernel,API,Communication,Marker", "log_file": str(directory), **settings}
    settings_in_force = MonitorSettings.from_fields(fields)
    return SessionInfo(session_id or f"session-{rank}", process, settings_in_force, START_NS)


class JobRank:
    """Makes the batches of one rank, step by step."""

    def __init__(self, rank: int, ranks: int, slow_rank: int) -> None:
        self.rank = rank
        self._slow = rank == slow_rank
        self._generator = np.random.default_rng(rank)
        self._correlation = 0
        self._marker = rank * 100_000

    def step(self, number: int, skipped_collectives: int = 0) -> list[Batch]:
        """Return the batches of one step; the first collectives may be missing."""
        begin = START_NS + number * STEP_NS
        markers = [
            *self._range(f"step {number}", begin, begin + STEP_NS - 1000),
            *self._range("forward", begin + 1000, begin + STEP_NS // 2),
            *self._range("backward", begin + STEP_NS // 2 + 1, begin + STEP_NS - 2000),
        ]
        apis: dict[ActivityKind, list[dict[str, Any]]] = {
            ActivityKind.API: [],
            ActivityKind.AclAPI: [],
            ActivityKind.RuntimeAPI: [],
        }
        kernels, collectives = [], []
        for place in range(COLLECTIVES_PER_STEP):
            time_ns = begin + 100_000 + place * 1_500_000
            kernels.append(self._kernel(apis, time_ns))
            collective = self._collective(apis, time_ns + 400_000, place)
            if place >= skipped_collectives:
                collectives.append(collective)
        return [
            make_batch(ActivityKind.Marker, markers),
            make_batch(ActivityKind.Kernel, kernels),
            *(make_batch(kind, rows) for kind, rows in apis.items()),
            make_batch(ActivityKind.Communication, collectives),
        ]

    def _range(self, name: str, start_ns: int, end_ns: int) -> list[dict[str, Any]]:
        self._marker += 1
        rows = []
        for source in (SourceKind.HOST, SourceKind.DEVICE):
            on_host = source == SourceKind.HOST
            place = (4000 + self.rank, 7) if on_host else (self.rank, 3)
            for flag, time_ns in (
                (MarkerFlag.START_WITH_DEVICE, start_ns),
                (MarkerFlag.END_WITH_DEVICE, end_ns),
            ):
                named = on_host and flag == MarkerFlag.START_WITH_DEVICE
                rows.append(
                    {
                        "flag": flag,
                        "source_kind": source,
                        "timestamp_ns": time_ns + (0 if on_host else 50_000),
                        "id": self._marker,
                        "process_or_device_id": place[0],
                        "thread_or_stream_id": place[1],
                        "name": name if named else "",
                        "domain": "default" if named else "",
                    }
                )
        return rows

    def _correlated(self, apis: dict[ActivityKind, list[dict[str, Any]]], start_ns: int) -> int:
        self._correlation += 1
        for depth, (kind, rows) in enumerate(apis.items()):
            rows.append(
                {
                    "start_ns": start_ns - 50_000 + depth * 100,
                    "end_ns": start_ns - 40_000 - depth * 100,
                    "process_id": 4000 + self.rank,
                    "thread_id": 7,
                    "correlation_id": self._correlation,
                    "name": f"{kind.name}_launch",
                }
            )
        return self._correlation

    def _kernel(
        self, apis: dict[ActivityKind, list[dict[str, Any]]], start_ns: int
    ) -> dict[str, Any]:
        return {
            "start_ns": start_ns,
            "end_ns": start_ns + 300_000 + int(self._generator.integers(0, 1000)),
            "device_id": self.rank,
            "stream_id": 2,
            "correlation_id": self._correlated(apis, start_ns),
            "type": "KERNEL_AICORE",
            "name": "MatMulV2",
        }

    def _collective(
        self, apis: dict[ActivityKind, list[dict[str, Any]]], start_ns: int, place: int
    ) -> dict[str, Any]:
        late_ns = 600_000 if self._slow else int(self._generator.integers(0, 20_000))
        return {
            "data_type": 4,
            "count": 1024,
            "device_id": self.rank,
            "stream_id": 5,
            "start_ns": start_ns + late_ns,
            "end_ns": start_ns + 900_000 + int(self._generator.integers(0, 50)),
            "alg_type": "RING",
            "name": "hcom_allReduce_" if place % 2 else "hcom_allGather_",
            "comm_name": GROUPS[place % 2],
            "correlation_id": self._correlated(apis, start_ns),
        }


@pytest.fixture
def kernels() -> Callable[..., Batch]:
    return make_kernels


@pytest.fixture
def batch() -> Callable[..., Batch]:
    return make_batch


@pytest.fixture(scope="session")
def session() -> Callable[..., SessionInfo]:
    return make_session


@pytest.fixture(scope="session")
def job_rank() -> Callable[..., JobRank]:
    return JobRank
