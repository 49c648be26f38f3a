"""A simulated MSPTI: the same C ABI and rules, and a believable training job behind it.

``MSMON_SIMULATE`` selects it in place of libmspti.so; everything above is the real code.
"""

from __future__ import annotations

from msmon.settings.simulation import SimulatedRank, SimulationOptions, parse_simulation
from msmon.simulation.mspti import SimulatedMspti, load_simulated
from msmon.simulation.step import OperatorKey, OperatorTotals, expected_step

__all__ = [
    "OperatorKey",
    "OperatorTotals",
    "SimulatedMspti",
    "SimulatedRank",
    "SimulationOptions",
    "expected_step",
    "load_simulated",
    "parse_simulation",
]
