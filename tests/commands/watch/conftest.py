"""Verdicts and notices with what a test cares about; a real daemon in place of the one by hand."""

from __future__ import annotations

import dataclasses

import pytest
from fixtures.running_daemon import daemon

from msmon.commands.watch.notices import Notice, Told
from msmon.insight.verdict import Fault, Verdict

__all__ = ["daemon"]

VERDICT = Verdict(
    kind=Fault.SLOW_DEVICE,
    ranks=(3,),
    group="",
    position=(),
    since_ns=1_700_000_000_000_000_000,
    since_step=12,
    effect=1.5,
    cost_percent=20.0,
    evidence=("worst: MatMul 1.50x",),
    text="slow device: rank 3",
    next="msmon nputrace --rank 3,1 --iterations 2",
    to_trace=(3, 1),
)


@pytest.fixture
def verdict():
    """Make a verdict on rank 3; ``rank`` and other fields may be given."""

    def make(rank: int = 3, **fields) -> Verdict:
        return dataclasses.replace(VERDICT, **{"ranks": (rank,), **fields})

    return make


@pytest.fixture
def notice(verdict):
    """Make a notice of a verdict that has begun."""

    def make(told: Told = Told.BEGUN, job: str = "train", **fields) -> Notice:
        return Notice(job, told, verdict(**fields), 5)

    return make
