"""What MSMON_SIMULATE and the rank variables may say."""

from __future__ import annotations

import pytest

from msmon.errors import UsageError
from msmon.simulation import SimulatedRank, SimulationOptions, parse_simulation


def test_one_takes_every_default() -> None:
    assert parse_simulation("1") == SimulationOptions()


def test_every_option_is_read() -> None:
    text = (
        "rate=5e4,jitter=0.1,slow_rank=2,slow_factor=1.5,seed=7,step_ms=100,layers=8,"
        "preload=1,lost_delivery_thread=1,ledger=/tmp/truth-{rank}.json,fault_file=/tmp/slow"
    )
    assert parse_simulation(text) == SimulationOptions(
        rate=50_000,
        jitter=0.1,
        slow_rank=2,
        slow_factor=1.5,
        seed=7,
        step_ms=100,
        layers=8,
        preload=1,
        lost_delivery_thread=1,
        ledger="/tmp/truth-{rank}.json",
        fault_file="/tmp/slow",
    )


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("speed=1", "speed"),
        ("yes", "yes"),
        ("rate=1,", "''"),
        ("rate", "rate"),
        ("rate=fast", "rate"),
        ("rate=nan", "rate"),
        ("rate=inf", "rate"),
        ("rate=0", "rate"),
        ("jitter=-0.1", "jitter"),
        ("step_ms=0.5", "step_ms"),
        ("seed=-1", "seed"),
        ("preload=2", "preload"),
        ("seed=1,seed=2", "seed"),
        ("rate=10000000,step_ms=1000", "rate"),
    ],
)
def test_wrong_option_is_named(text: str, named: str) -> None:
    with pytest.raises(UsageError, match="MSMON_SIMULATE") as caught:
        parse_simulation(text)
    assert named in caught.value.message


def test_lone_process_is_rank_zero_of_one() -> None:
    assert SimulatedRank.from_environment({}) == SimulatedRank(0, 0, 1)


def test_rank_comes_from_the_environment() -> None:
    environ = {"RANK": "9", "LOCAL_RANK": "1", "WORLD_SIZE": "16"}
    assert SimulatedRank.from_environment(environ) == SimulatedRank(9, 1, 16)


@pytest.mark.parametrize("name", ["RANK", "LOCAL_RANK", "WORLD_SIZE"])
@pytest.mark.parametrize("value", ["one", "-1"])
def test_wrong_rank_is_named(name: str, value: str) -> None:
    with pytest.raises(UsageError, match=name):
        SimulatedRank.from_environment({name: value})
