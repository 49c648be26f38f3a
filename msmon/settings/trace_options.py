"""Options of nputrace, defined once: for the command line, the wire and the frameworks.

Keys, ranges and defaults are those of msMonitor's ``dyno nputrace``; what a trace
backend can't honour is named in its answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from msmon.errors import UsageError
from msmon.settings.options import MAX_U32, Option, flag, real_number, text_up_to, whole_number

ACTIVITIES = ("CPU,NPU", "NPU,CPU", "CPU", "NPU")
PROFILER_LEVELS = ("Level0", "Level1", "Level2", "Level_none")
AIC_METRICS = (
    "AiCoreNone",
    "PipeUtilization",
    "ArithmeticUtilization",
    "Memory",
    "MemoryL0",
    "ResourceConflictRatio",
    "MemoryUB",
    "L2Cache",
    "MemoryAccess",
)
HOST_SYSTEMS = ("cpu", "mem", "disk", "network", "osrt")
NEXT_STEP = -1
"""Value of ``start_step`` for "as soon as possible, the same step on every rank"."""
MAX_STEP = 2**53


def _list_of(allowed: tuple[str, ...]) -> Callable[[Any], str]:
    def parse(value: Any) -> str:
        items = [item.strip() for item in text_up_to(1024)(value).split(",")]
        wrong = [item for item in items if item not in allowed]
        if wrong and value:
            raise UsageError(f"{wrong[0]!r} is not a valid value", f"allowed: {', '.join(allowed)}")
        return ",".join(items)

    return parse


def parse_ranks(value: Any) -> list[int]:
    """Parse "0,2,4-7" (or a list of numbers) into sorted distinct ranks. Raises UsageError."""
    if isinstance(value, (list, tuple)):
        value = ",".join(str(item) for item in value)
    ranks: set[int] = set()
    for item in text_up_to(1024)(value).split(","):
        first, dash, last = item.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise UsageError(f"{item!r} is not a rank or a range", "write for example 0,2,4-7")
        if dash and int(last) < int(first):
            raise UsageError(f"range {item!r} runs backwards", "write for example 4-7")
        ranks.update(range(int(first), int(last if dash else first) + 1))
    return sorted(ranks)


def _switch(name: str, help_text: str) -> Option:
    flag_name = "--" + name.replace("_", "-")
    return Option(
        name, flag_name, help_text, flag, default=False, msmonitor_key=f"PROFILE_{name.upper()}"
    )


def _domains(direction: str, help_text: str) -> Option:
    return Option(
        f"mstx_domain_{direction}",
        f"--mstx-domain-{direction}",
        help_text,
        text_up_to(1024),
        default="",
        msmonitor_key=f"PROFILE_MSTX_DOMAIN_{direction.upper()}",
        metavar="DOMAIN[,DOMAIN...]",
    )


TRACE_OPTIONS: tuple[Option, ...] = (
    Option(
        "iterations",
        "--iterations",
        "Training steps to trace.",
        whole_number,
        default=0,
        msmonitor_key="ACTIVITIES_ITERATIONS",
        minimum=0,
        maximum=MAX_STEP,
        metavar="STEPS",
    ),
    Option(
        "start_step",
        "--start-step",
        "First step to trace; -1: as soon as possible, the same step on every rank.",
        whole_number,
        default=NEXT_STEP,
        msmonitor_key="PROFILE_START_STEP",
        minimum=NEXT_STEP,
        maximum=MAX_STEP,
        metavar="STEP",
    ),
    Option(
        "warmup",
        "--warmup",
        "Steps run under the profiler and thrown away before the first traced one.",
        whole_number,
        default=0,
        msmonitor_key="WARMUP_ITERATIONS",
        minimum=0,
        maximum=MAX_U32,
        metavar="STEPS",
    ),
    Option(
        "start_time_ms",
        "--start-time",
        "Do not start before this moment (Unix time in ms; 0: at once).",
        whole_number,
        default=0,
        msmonitor_key="PROFILE_START_TIME",
        minimum=0,
        maximum=MAX_STEP,
        metavar="MS",
    ),
    Option(
        "duration_ms",
        "--duration-ms",
        "Trace for this many ms instead of a number of steps.",
        whole_number,
        default=0,
        msmonitor_key="ACTIVITIES_DURATION_MSECS",
        minimum=0,
        maximum=MAX_U32,
        metavar="MS",
    ),
    Option(
        "log_file",
        "--log-file",
        "Directory for the traces.",
        text_up_to(4096),
        default="",
        msmonitor_key="ACTIVITIES_LOG_FILE",
        metavar="DIRECTORY",
    ),
    _switch("record_shapes", "Record input shapes and types of operators."),
    _switch("profile_memory", "Record memory allocated by operators."),
    _switch("with_stack", "Record Python call stacks."),
    _switch("with_flops", "Estimate floating point operations."),
    _switch("with_modules", "Record module-level call stacks."),
    Option(
        "activities",
        "--activities",
        "What to collect.",
        text_up_to(64),
        default="CPU,NPU",
        msmonitor_key="PROFILE_ACTIVITIES",
        choices=ACTIVITIES,
    ),
    Option(
        "profiler_level",
        "--profiler-level",
        "Depth of device data.",
        text_up_to(64),
        default="Level0",
        msmonitor_key="PROFILE_PROFILER_LEVEL",
        choices=PROFILER_LEVELS,
    ),
    Option(
        "aic_metrics",
        "--aic-metrics",
        "AI Core counters.",
        text_up_to(64),
        default="AiCoreNone",
        msmonitor_key="PROFILE_AIC_METRICS",
        choices=AIC_METRICS,
    ),
    _switch("analyse", "Parse the data after collection."),
    _switch("async_mode", "Parse in the background, so that no training step waits for it."),
    _switch("l2_cache", "Record L2 cache data."),
    _switch("op_attr", "Record operator attributes."),
    _switch("msprof_tx", "Record mstx markers."),
    _domains("include", "Only these mstx domains; wins over exclude."),
    _domains("exclude", "All mstx domains but these."),
    Option(
        "gc_detect_threshold",
        "--gc-detect-threshold",
        "Record garbage collections longer than this (ms; 0: all, -1: off).",
        real_number,
        default=-1.0,
        msmonitor_key="PROFILE_GC_DETECT_THRESHOLD",
        minimum=-1.0,
        maximum=MAX_U32,
        metavar="MS",
    ),
    Option(
        "data_simplification",
        "--data-simplification",
        "Delete intermediate data after parsing (true or false).",
        lambda value: str(value).lower(),
        default="true",
        msmonitor_key="PROFILE_DATA_SIMPLIFICATION",
        choices=("true", "false"),
    ),
    Option(
        "export_type",
        "--export-type",
        "Format of parsed data.",
        lambda value: {"text": "Text", "db": "Db"}.get(str(value).lower(), value),
        default="Text",
        msmonitor_key="PROFILE_EXPORT_TYPE",
        choices=("Text", "Db"),
    ),
    Option(
        "host_sys",
        "--host-sys",
        f"Host system data, a comma list of {', '.join(HOST_SYSTEMS)}.",
        _list_of(HOST_SYSTEMS),
        default="",
        msmonitor_key="PROFILE_HOST_SYS",
        metavar="SYSTEM[,SYSTEM...]",
    ),
    _switch("sys_io", "Record NIC and RoCE data."),
    _switch("sys_interconnection", "Record HCCS, PCIe and inter-chip data."),
)
"""Options of one trace that travel to the ranks."""

TRACE_OPTION: dict[str, Option] = {option.name: option for option in TRACE_OPTIONS}


def check_trace(fields: dict[str, Any]) -> dict[str, Any]:
    """Check the fields of a trace request and fill in the defaults.

    Raises UsageError for a wrong value, for a request with neither or both of
    ``iterations`` and ``duration_ms``, and for one without ``log_file``.
    """
    unknown = sorted(set(fields) - set(TRACE_OPTION))
    if unknown:
        raise UsageError(
            f"unknown option {', '.join(unknown)}", "the two sides may have different versions"
        )
    checked = {
        name: option.check(fields[name]) if name in fields else option.default
        for name, option in TRACE_OPTION.items()
    }
    if bool(checked["iterations"]) == bool(checked["duration_ms"]):
        raise UsageError("a trace needs either --iterations or --duration-ms", "give one of them")
    if not checked["log_file"]:
        raise UsageError("a trace needs --log-file", "name the directory for the traces")
    if checked["async_mode"] and not checked["analyse"]:
        raise UsageError("--async-mode needs --analyse", "add --analyse")
    if not math.isfinite(checked["gc_detect_threshold"]):
        raise UsageError("--gc-detect-threshold is not a number", "give a number of ms")
    return checked
