"""The model of a job of eight ranks, of which one is slow since a while."""

from __future__ import annotations

import pytest
from fixtures.live_windows import BASE_NS, LiveJob
from fixtures.running_daemon import daemon  # noqa: F401  a real one, as outside of commands

from msmon.commands.top.build import ModelBuilder
from msmon.commands.top.model import Model

SECOND_NS = 1_000_000_000


def built(job: LiveJob, duration_s: float = 200.0, states=()) -> Model:
    """Return the model five seconds after ``duration_s``."""
    builder = ModelBuilder()
    builder.take(list(job.windows(duration_s)))
    builder.take_states(states)
    return builder.model(BASE_NS + round((duration_s + 5) * SECOND_NS), daemons=2)


@pytest.fixture(scope="session")
def slow_model() -> Model:
    return built(LiveJob(ranks=8, slow={3: 1.3}, slow_from_s=100), 300)


@pytest.fixture(scope="session")
def model_of_job():
    return built
