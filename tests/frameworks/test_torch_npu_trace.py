"""A trace by msmon calls torch_npu's own profiler with every option, and prints no warning."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

JOB = Path(__file__).with_name("torch_npu_trace.py")

EVERYTHING = {
    **{"record_shapes": True, "profile_memory": True, "with_stack": True, "with_flops": True},
    **{"profiler_level": "Level1", "aic_metrics": "MemoryAccess", "l2_cache": True},
    **{"op_attr": True, "msprof_tx": True, "mstx_domain_include": "default,mine"},
    **{"gc_detect_threshold": 5, "data_simplification": "false", "export_type": "Db"},
    **{"host_sys": "cpu,mem", "sys_io": True, "sys_interconnection": True},
}


@pytest.fixture
def trace(torch_npu_sources, environ, tmp_path):
    def run(directory: Path = tmp_path, **options):
        fields = {"iterations": 2, "log_file": str(directory), **options}
        done = subprocess.run(
            [sys.executable, str(JOB), str(torch_npu_sources), json.dumps(fields)],
            env={**environ, "RANK": "3"},
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        *said, result = done.stdout.splitlines()
        return json.loads(result), "\n".join(said) + done.stderr

    return run


def test_every_option_arrives_and_the_schedule_ends_as_it_should(trace):
    result, said = trace(**EVERYTHING)
    assert result["left_out"] == [], said
    assert result["calls"] == [
        *("_init_profiler", "_warmup_profiler", "_start_profiler"),
        *("_stop_profiler", "_finalize_profiler"),
    ]
    assert result["switches"] == [True, True, True, True, False]
    config = result["config"]
    assert sorted(config["host_sys"]) == ["cpu", "mem"]
    assert sorted(config["mstx_domain_include"]) == ["default", "mine"]
    assert (config["trace_level"], config["metrics"]) == ("Level1", "ACL_AICORE_MEMORY_ACCESS")
    for name in ("l2_cache", "msprof_tx", "op_attr", "sys_io", "sys_interconnection"):
        assert config[name] is True, name
    assert not [word for word in ("failed", "Incorrect", "WARN") if word in said], said
    (path,) = result["files"]
    info = json.loads(Path(path, "profiler_info_3.json").read_text())
    experimental = info["config"]["experimental_config"]
    assert experimental["_data_simplification"] is False
    assert experimental["_export_type"] == ["db"]
    assert experimental["_gc_detect_threshold"] == 5


def test_options_that_torch_npu_resets_are_named(trace):
    result, _ = trace(aic_metrics="Memory", op_attr=True, mstx_domain_exclude="a")
    assert [text.split()[0] for text in result["left_out"]] == [
        *("--aic-metrics", "--mstx-domain-exclude", "--op-attr")
    ]
    assert result["config"]["metrics"] == "ACL_AICORE_NONE"


def test_a_linked_directory_is_followed(trace, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    result, _ = trace(tmp_path / "link")
    assert Path(result["files"][0]).parent == tmp_path / "real"


def test_a_trace_never_meets_a_profiler_that_the_job_has_started(torch_npu_sources, tmp_path):
    program = Path(__file__).with_name("torch_npu_profiling_job.py")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(program), str(torch_npu_sources), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = [line for line in done.stdout.splitlines() if "|" in line]
    assert told == [
        "failed|torch_npu.profiler of the job was at work at step 2",
        "done|1 of 3 steps: the job has started torch_npu.profiler after step 3",
    ]
    calls = [name for name in done.stdout.splitlines()[-1].split() if "warmup" not in name]
    once = ["_init_profiler", "_start_profiler", "_stop_profiler", "_finalize_profiler"]
    jobs_first = ["_init_profiler", "_finalize_profiler"]  # it was stopped in its warm-up
    assert calls == [*jobs_first, *once, *jobs_first]
