"""What MSMON_SIMULATE may say: the options of the simulated MSPTI and its rank.

``MSMON_SIMULATE=1`` takes every default; otherwise it is a comma list such as
``rate=20000,jitter=0.05,slow_rank=2,slow_factor=1.3,seed=7``.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from msmon.errors import UsageError
from msmon.settings.options import Option, real_number, text_up_to, whole_number

VARIABLE = "MSMON_SIMULATE"
MAX_RECORDS_PER_STEP = 500_000


@dataclass(frozen=True)
class SimulationOptions:
    """Options of the simulated job, the same for all of its ranks.

    ``rate`` is how many records per second the job has with all kinds enabled, whoever
    watches; it takes away from ``layers`` where it is low, and ends at what one micro batch
    through one layer needs per step. ``slow_rank`` (-1: none) computes ``slow_factor`` times
    as long as the others. ``jitter`` is the largest relative deviation of a duration.
    ``slow_link`` is how many times as long the first all-reduce of every fourth step transfers.
    ``preload`` behaves as if libmspti.so were in LD_PRELOAD, ``lost_delivery_thread`` as on
    the starts where MSPTI loses that thread. ``ledger`` is a file for what was recorded, in
    which ``{rank}`` stands for the rank. With ``fault_file`` nothing is slow but while that file
    exists; all ranks look at it when a step begins.
    """

    rate: float = 20_000.0
    jitter: float = 0.05
    slow_rank: int = -1
    slow_factor: float = 1.3
    slow_link: float = 1.0
    seed: int = 0
    step_ms: int = 200
    layers: int = 4
    preload: int = 0
    lost_delivery_thread: int = 0
    ledger: str = ""
    fault_file: str = ""

    @property
    def step_ns(self) -> int:
        """Length of a training step."""
        return self.step_ms * 1_000_000

    @property
    def records_per_step(self) -> float:
        """Records of all kinds that one step should have."""
        return self.rate * self.step_ms / 1000


def _option(name: str, parse: Any, low: float | None = None, high: float | None = None) -> Option:
    return Option(name, f"{VARIABLE}: {name}", "", parse, minimum=low, maximum=high)


_OPTIONS = {
    option.name: option
    for option in (
        _option("rate", real_number, 1, 10_000_000),
        _option("jitter", real_number, 0, 0.9),
        _option("slow_rank", whole_number, -1, 2**31),
        _option("slow_factor", real_number, 0.1, 100),
        _option("slow_link", real_number, 1, 100),
        _option("seed", whole_number, 0, 2**63),
        _option("step_ms", whole_number, 1, 3_600_000),
        _option("layers", whole_number, 1, 1000),
        _option("preload", whole_number, 0, 1),
        _option("lost_delivery_thread", whole_number, 0, 1),
        _option("ledger", text_up_to(4096)),
        _option("fault_file", text_up_to(4096)),
    )
}


def parse_simulation(text: str) -> SimulationOptions:
    """Parse the value of MSMON_SIMULATE.

    Raises UsageError naming the unknown option or the one whose value is wrong.
    """
    if text == "1":
        return SimulationOptions()
    values: dict[str, Any] = {}
    for item in text.split(","):
        name, separator, value = item.strip().partition("=")
        if not separator or name not in _OPTIONS:
            raise UsageError(
                f"{VARIABLE}: {item!r} is no option",
                f"write 1, or a comma list of NAME=VALUE with {', '.join(_OPTIONS)}",
            )
        if name in values:
            raise UsageError(f"{VARIABLE}: {name} is given twice")
        values[name] = _OPTIONS[name].check(value)
    options = dataclasses.replace(SimulationOptions(), **values)
    if options.records_per_step > MAX_RECORDS_PER_STEP:
        raise UsageError(
            f"{VARIABLE}: rate={options.rate:g} is {options.records_per_step:g} records in a step",
            f"lower step_ms or rate to at most {MAX_RECORDS_PER_STEP} records a step",
        )
    return options


@dataclass(frozen=True)
class SimulatedRank:
    """Which rank of the job this process is; one rank has one device, its local rank."""

    rank: int
    local_rank: int
    world_size: int

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> SimulatedRank:
        """Read RANK, LOCAL_RANK and WORLD_SIZE; a lone process is rank 0 of 1.

        Raises UsageError naming the variable that is no whole number of at least 0.
        """
        rank = _read_number(environ, "RANK", 0)
        world_size = _read_number(environ, "WORLD_SIZE", rank + 1)
        return cls(rank, _read_number(environ, "LOCAL_RANK", rank), max(world_size, rank + 1))


def simulation_of(environ: Mapping[str, str]) -> tuple[SimulationOptions, SimulatedRank]:
    """Return what MSMON_SIMULATE and the rank variables describe.

    Raises UsageError naming the option or variable that is wrong.
    """
    options = parse_simulation(environ.get(VARIABLE, "1"))
    directory = os.path.dirname(options.ledger) or "."
    if options.ledger and not os.access(directory, os.W_OK):
        raise UsageError(f"{VARIABLE}: ledger: {directory!r} is no directory to write to")
    return options, SimulatedRank.from_environment(environ)


def _read_number(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name, "")
    if not text:
        return default
    return int(Option(name, name, "", whole_number, minimum=0, maximum=2**31).check(text))
