"""The job's own profiler in MindSpore, and how its start and end are noticed."""

from __future__ import annotations

import sys
import types

import pytest

from msmon.agent.tracing.job_profilers import MINDSPORE, JobProfilers


@pytest.fixture
def module(monkeypatch):
    """The interface of MindSpore's profiler, shaped as in MindSpore 2.5 and later."""

    class ProfilerInterface:
        is_initialized = False

        @classmethod
        def init(cls) -> None:
            cls.is_initialized = True

        @classmethod
        def clear(cls) -> None:
            cls.is_initialized = False

    module = types.ModuleType("mindspore.profiler.profiler_interface")
    module.ProfilerInterface = ProfilerInterface  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def test_mindspores_profiler_is_at_work_from_its_warm_up_to_its_end(module):
    profilers = JobProfilers()
    profilers.on_import[module.__name__](module)
    starts: list[str] = []
    profilers.make_way = starts.append
    module.ProfilerInterface.init()
    module.ProfilerInterface.init()  # it is there already
    assert (starts, profilers.at_work()) == ([MINDSPORE], MINDSPORE)
    module.ProfilerInterface.clear()
    assert profilers.at_work() == ""


def test_a_trace_of_ours_does_not_make_way_for_itself(module):
    profilers = JobProfilers()
    profilers.on_import[module.__name__](module)
    profilers.is_ours = lambda: True
    profilers.make_way = pytest.fail
    module.ProfilerInterface.init()


def test_what_a_trace_raises_does_not_reach_the_job(module):
    profilers = JobProfilers()
    profilers.on_import[module.__name__](module)

    def fail(name: str) -> None:
        raise RuntimeError(name)

    profilers.make_way = fail
    module.ProfilerInterface.init()
    assert module.ProfilerInterface.is_initialized
