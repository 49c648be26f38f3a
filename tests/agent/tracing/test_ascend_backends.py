"""The Ascend profilers get what was asked for, under their own names."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import types

import pytest

from msmon.agent.tracing.backend import make_backend
from msmon.agent.tracing.plan import TracePlan
from msmon.errors import CommandRefused
from msmon.settings.trace_options import check_trace


class Named:
    """Any attribute is its own name, as a stand-in for an enumeration."""

    def __getattr__(self, name: str) -> str:
        return name


class Config:
    def __init__(
        self,
        profiler_level=None,
        aic_metrics=None,
        l2_cache=None,
        mstx=None,
        data_simplification=None,
        export_type=None,
        host_sys=None,
        mstx_domain_include=None,
        mstx_domain_exclude=None,
        sys_io=None,
        sys_interconnection=None,
        gc_detect_threshold=None,
    ) -> None:
        self.values = {k: v for k, v in locals().items() if k != "self" and v is not None}


def profiler_module(directory, suffix: str) -> types.ModuleType:
    """Return a module with the names that both frameworks have, and the calls it got."""
    module = types.ModuleType("profiler")
    module.calls = []

    class Profile:
        def __init__(
            self,
            *,
            activities=None,
            record_shapes=None,
            profile_memory=None,
            with_stack=None,
            schedule=None,
            on_trace_ready=None,
            experimental_config=None,
            **others,
        ) -> None:
            module.arguments = {k: v for k, v in locals().items() if k != "self"} | others

        def start(self) -> None:
            module.calls.append("start")
            written = directory / f"{socket.gethostname()}_{os.getpid()}_20260101_{suffix}"
            written.mkdir()
            (written / "profiler_info_0.json").touch()

        def step(self) -> None:
            module.calls.append("step")

        def stop(self) -> None:
            module.calls.append("stop")

        def _set_step_num_offset_for_dynamic_prof(self, step: int) -> None:
            module.offset = step

    module.profile = Profile
    module.schedule = lambda **arguments: arguments
    module.tensorboard_trace_handler = lambda path, analyse_flag: (path, analyse_flag)
    module._ExperimentalConfig = Config
    for name in ("ProfilerActivity", "ProfilerLevel", "AiCMetrics", "AicoreMetrics", "ExportType"):
        setattr(module, name, Named())
    return module


@pytest.fixture
def framework(monkeypatch, tmp_path):
    def install(name: str, suffix: str) -> types.ModuleType:
        for other in ("torch_npu", "mindspore", "torch"):
            monkeypatch.delitem(sys.modules, other, raising=False)
        package, profiler = types.ModuleType(name), profiler_module(tmp_path, suffix)
        package.profiler = profiler
        monkeypatch.setitem(sys.modules, name, package)
        monkeypatch.setitem(sys.modules, f"{name}.profiler", profiler)
        return profiler

    return install


def plan(directory, **options) -> TracePlan:
    fields = {"iterations": 2, "log_file": str(directory), **options}
    return TracePlan("t", check_trace(fields), "node_1_rank0")


def test_torch_npu_gets_every_option_that_it_has(framework, tmp_path):
    module = framework("torch_npu", "ascend_pt")
    wanted = {"with_stack": True, "profiler_level": "Level1", "aic_metrics": "Memory"}
    wanted |= {"host_sys": "cpu,mem", "gc_detect_threshold": 5, "export_type": "Db"}
    backend = make_backend(plan(tmp_path, **wanted))
    assert backend.left_out == ()
    backend.begin(8, 10)
    for step in (9, 10, 11):
        backend.step(step)
    backend.end()
    assert module.calls == ["start", *["step"] * 4, "stop"], "the schedule comes to its end"
    assert module.offset == 8
    assert module.arguments["activities"] == ["CPU", "NPU"]
    assert module.arguments["with_stack"] is True
    schedule = {"wait": 0, "warmup": 2, "active": 2, "repeat": 1}
    assert module.arguments["schedule"] == schedule
    config = module.arguments["experimental_config"].values
    assert config["profiler_level"] == "Level1"
    assert config["host_sys"] == ["cpu", "mem"]
    assert config["gc_detect_threshold"] == 5
    assert config["export_type"] == "db"
    name = f"{socket.gethostname()}_{os.getpid()}_20260101_ascend_pt"
    assert backend.write(10, 11) == (str(tmp_path / name),)


def test_a_trace_limited_by_time_is_stopped_within_its_schedule(framework, tmp_path):
    module = framework("torch_npu", "ascend_pt")
    backend = make_backend(plan(tmp_path, iterations=0, duration_ms=100))
    backend.begin(10, 10)
    backend.step(11)
    backend.end()
    assert module.calls == ["start", "step", "stop"]


def test_options_that_lack_another_are_told_with_what_they_need(framework, tmp_path):
    framework("torch_npu", "ascend_pt")
    wanted = {"aic_metrics": "Memory", "mstx_domain_include": "a,b", "activities": "NPU"}
    backend = make_backend(plan(tmp_path, gc_detect_threshold=1, **wanted))
    assert backend.left_out == (
        "--aic-metrics (needs --profiler-level Level1 or Level2)",
        "--mstx-domain-include (needs --msprof-tx)",
        "--gc-detect-threshold (needs CPU among --activities)",
    )


def test_an_older_torch_npu_names_what_it_has_not(framework, tmp_path):
    framework("torch_npu", "ascend_pt")
    backend = make_backend(plan(tmp_path, op_attr=True))
    assert backend.left_out == ("--op-attr",)
    backend.begin(10, 10)


def test_mindspore_names_what_it_has_not(framework, tmp_path):
    module = framework("mindspore", "ascend_ms")
    wanted = {"with_flops": True, "op_attr": True, "profiler_level": "Level_none"}
    backend = make_backend(plan(tmp_path, msprof_tx=True, **wanted))
    assert backend.left_out == ("--with-flops", "--op-attr")
    backend.begin(10, 10)
    backend.end()
    config = module.arguments["experimental_config"].values
    assert (config["profiler_level"], config["mstx"]) == ("LevelNone", True)


def test_parsing_that_fails_is_told_with_its_reason(framework, tmp_path, monkeypatch):
    framework("torch_npu", "ascend_pt")
    backend = make_backend(plan(tmp_path, analyse=True))
    monkeypatch.setattr(type(backend), "ANALYSE", "import sys; sys.exit('no space')")
    backend.begin(10, 10)
    backend.end()
    with pytest.raises(RuntimeError, match="code 1: no space"):
        backend.write(10, 11)


def test_parsing_without_results_is_a_failure(framework, tmp_path, monkeypatch):
    framework("torch_npu", "ascend_pt")
    backend = make_backend(plan(tmp_path, analyse=True))
    monkeypatch.setattr(type(backend), "ANALYSE", "print('no msprof here')")
    backend.begin(10, 10)
    backend.end()
    with pytest.raises(RuntimeError, match="no results: no msprof here"):
        backend.write(10, 11)


def test_raw_data_of_a_profiler_that_failed_is_a_failure(framework, tmp_path):
    framework("torch_npu", "ascend_pt")
    backend = make_backend(plan(tmp_path))
    backend.begin(10, 10)
    backend.end()
    for info in tmp_path.glob("*/profiler_info*.json"):
        info.unlink()
    with pytest.raises(RuntimeError, match="left only parts in"):
        backend.write(10, 11)


def test_a_directory_that_the_profiler_refuses_is_a_failure(framework, tmp_path):
    module = framework("mindspore", "ascend_ms")
    module.tensorboard_trace_handler = lambda path, analyse_flag: None  # it has printed why
    backend = make_backend(plan(tmp_path))
    with pytest.raises(RuntimeError, match="refuses the path"):
        backend.begin(10, 10)


def test_a_profiler_that_wrote_nothing_is_a_failure(framework, tmp_path):
    framework("torch_npu", "ascend_pt")
    backend = make_backend(plan(tmp_path))
    backend.begin(10, 10)
    backend.end()
    for path in tmp_path.iterdir():
        shutil.rmtree(path)
    with pytest.raises(RuntimeError, match="has written nothing"):
        backend.write(10, 11)


def test_a_process_without_a_framework_has_no_profiler(monkeypatch, tmp_path):
    for name in ("torch_npu", "mindspore", "torch"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(CommandRefused, match="has imported none of"):
        make_backend(plan(tmp_path))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to another user")
def test_what_another_user_put_under_the_name_of_the_process_is_not_parsed(framework, tmp_path):
    framework("torch_npu", "ascend_pt")
    backend = make_backend(plan(tmp_path, analyse=True))
    backend.begin(10, 10)
    backend.end()
    (own,) = tmp_path.iterdir()
    shutil.rmtree(own)
    planted = tmp_path / f"{own.name}_planted"
    planted.mkdir()
    (planted / "profiler_info_0.json").touch()
    (tmp_path / f"{own.name}_link").symlink_to(planted)
    os.chown(planted, 23456, 23456)
    with pytest.raises(RuntimeError, match="has written nothing"):
        backend.write(10, 11)
