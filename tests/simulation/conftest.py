"""Plain ctypes callbacks that lend buffers and note how they come back."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from msmon.ffi.mspti import Mspti
from msmon.ffi.prototypes import BUFFER_COMPLETE, BUFFER_REQUEST
from msmon.simulation import SimulatedMspti, SimulatedRank, SimulationOptions, parse_simulation


@dataclass(frozen=True)
class Completion:
    """One call of complete: its arguments, the bytes, and the thread it came on."""

    address: int
    size_bytes: int
    data: bytes
    thread_id: int


@dataclass
class BufferLender:
    """Request and complete callbacks over buffers of one size; size 0 or ``decline`` says no."""

    size_bytes: int
    decline: bool = False
    requests: int = 0
    completions: list[Completion] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._buffers: dict[int, ctypes.Array[ctypes.c_char]] = {}
        self._changed = threading.Condition()
        self._request = BUFFER_REQUEST(self._on_request)
        self._complete = BUFFER_COMPLETE(self._on_complete)

    @property
    def addresses(self) -> tuple[int, int]:
        request = ctypes.cast(self._request, ctypes.c_void_p).value or 0
        complete = ctypes.cast(self._complete, ctypes.c_void_p).value or 0
        return request, complete

    def _on_request(self, buffer, size, max_records) -> None:
        self.requests += 1
        size[0] = self.size_bytes
        if self.decline:
            return
        memory = ctypes.create_string_buffer(max(1, self.size_bytes))
        self._buffers[ctypes.addressof(memory)] = memory
        buffer[0] = ctypes.c_void_p(ctypes.addressof(memory))

    def _on_complete(self, address, size_bytes, valid_bytes) -> None:
        data = ctypes.string_at(address, valid_bytes) if address else b""
        with self._changed:
            self.completions.append(
                Completion(address or 0, size_bytes, data, threading.get_ident())
            )
            self._changed.notify_all()

    def wait_for(self, count: int) -> None:
        """Wait until complete was called ``count`` times."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.completions) >= count, timeout=10)


@pytest.fixture
def simulate() -> Iterator[Callable[..., tuple[SimulatedMspti, Mspti]]]:
    """Make simulated libraries from the text of MSMON_SIMULATE and stop them at the end."""
    made = []

    def make(
        text: str = "1", rank: int = 0, world_size: int = 1, ld_preload: str = ""
    ) -> tuple[SimulatedMspti, Mspti]:
        options: SimulationOptions = parse_simulation(text)
        simulation = SimulatedMspti(options, SimulatedRank(rank, rank, world_size), ld_preload)
        made.append(simulation)
        return simulation, Mspti(simulation.addresses, "simulated")

    yield make
    for simulation in made:
        simulation.close()


@pytest.fixture
def lender() -> Callable[..., BufferLender]:
    return BufferLender
