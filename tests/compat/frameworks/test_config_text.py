"""Command texts survive the parsers of torch_npu and MindSpore."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from msmon.bus.words import MonitorAction
from msmon.compat.frameworks.config_text import (
    FrameworkCommand,
    monitor_command,
    monitor_text,
    trace_text,
)
from msmon.errors import UsageError


def parsed_by_torch_npu(text: str) -> dict[str, str]:
    """Do what ``DynamicProfilerUtils.dyno_str_to_json`` and ``_call_dyno_monitor`` do."""
    pairs = [pair.split("=") for pair in text.split("\n")]
    found = {pair[0].strip(): pair[1].strip() for pair in pairs if len(pair) == 2}
    return {key: str(value) for key, value in {**found, "is_valid": True}.items()}


FIELDS = {
    "kinds": "Marker,Kernel",
    "filter": "Kernel:a=b",
    "report_interval_s": 0.5,
    "log_file": "/data/100%/x=y\nz",
    "ship_records": True,
}


def test_what_was_mentioned_arrives_and_nothing_else():
    sent = FrameworkCommand(MonitorAction.START, FIELDS, "d1-7", "abc", (0, 3))
    got = monitor_command(parsed_by_torch_npu(monitor_text(sent)))
    assert got == sent


@given(st.text(st.characters(blacklist_categories=("Cs",)), max_size=200))
def test_any_path_survives(path):
    sent = FrameworkCommand(MonitorAction.START, {"log_file": path}, "r")
    assert monitor_command(parsed_by_torch_npu(monitor_text(sent))).fields == sent.fields


@pytest.mark.parametrize("action", list(MonitorAction))
def test_every_text_is_recognised_as_npu_monitor(action):
    config = parsed_by_torch_npu(monitor_text(FrameworkCommand(action, {}, "r")))
    assert "NPU_MONITOR_START" in config
    assert monitor_command(config) == FrameworkCommand(action, {}, "r")


def test_no_key_is_changed_by_mindspore():
    keys = parsed_by_torch_npu(monitor_text(FrameworkCommand(MonitorAction.START, FIELDS, "r")))
    assert not [key for key in keys if "PROFILE" in key or "ACTIVITIES" in key]


MSMONITOR = {
    "NPU_MONITOR_START": "true",
    "NPU_MONITOR_STOP": "false",
    "REPORT_INTERVAL_S": "60",
    "DURATION": "0",
    "MSPTI_ACTIVITY_KIND": "Marker",
    "NPU_MONITOR_LOG_FILE": "/data/100%25",
    "NPU_MONITOR_EXPORT_TYPE": "DB",
    "JSONL_ROTATE_LOG_LINES": "",
    "JSONL_ROTATE_LOG_FILES": "",
    "NPU_MONITOR_FILTER": "",
    "is_valid": "True",
}


def test_a_text_of_msmonitors_daemon_is_understood():
    command = monitor_command(MSMONITOR)
    assert command.action is None
    assert command.fields["log_file"] == "/data/100%25"
    assert command.fields["report_interval_s"] == 60.0
    assert "jsonl_rotate_lines" not in command.fields
    assert monitor_command({**MSMONITOR, "NPU_MONITOR_STOP": "true"}).action == "stop"
    assert (
        "report_interval_s" not in monitor_command({**MSMONITOR, "REPORT_INTERVAL_S": "0"}).fields
    )


def test_a_wrong_value_names_its_option():
    with pytest.raises(UsageError, match="--kind"):
        monitor_command({**MSMONITOR, "MSPTI_ACTIVITY_KIND": "Kernels"})


def test_ranks_of_another_launch_are_not_meant():
    command = FrameworkCommand(MonitorAction.START, {}, "r", "launch-a", (1,))
    assert command.is_for(1, "launch-a")
    assert command.is_for(1, "")
    assert not command.is_for(1, "launch-b")
    assert not command.is_for(0, "launch-a")


def test_a_trace_has_the_keys_that_torch_npu_wants():
    config = parsed_by_torch_npu(trace_text({"log_file": "/out", "iterations": 2}, (0, 1)))
    assert "NPU_MONITOR_START" not in config
    assert config["PROFILE_ACTIVITIES"] == "CPU,NPU"
    assert config["ACTIVITIES_ITERATIONS"] == "2"
    assert config["PROFILE_START_STEP"] == "-1"
    assert config["PROFILE_GC_DETECT_THRESHOLD"] == "None"
    assert config["PROFILE_RANK_LIST"] == "0,1"


def test_a_trace_path_that_would_be_lost_is_refused():
    with pytest.raises(UsageError, match="--log-file"):
        trace_text({"log_file": "/a=b", "iterations": 2})
