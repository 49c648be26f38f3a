"""MSPTI's result codes (mspti_result.h), their names, and what a person can do about each."""

from __future__ import annotations

import enum

PRELOAD_LINE = "export LD_PRELOAD=$ASCEND_HOME_PATH/lib64/libmspti.so"
"""What a shell needs before the job starts, so that MSPTI interposes ACL and HCCL calls."""


class Result(enum.IntEnum):
    """``msptiResult``."""

    MSPTI_SUCCESS = 0
    MSPTI_ERROR_INVALID_PARAMETER = 1
    MSPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED = 2
    MSPTI_ERROR_MAX_LIMIT_REACHED = 3
    MSPTI_ERROR_DEVICE_OFFLINE = 4
    MSPTI_ERROR_QUEUE_EMPTY = 5
    MSPTI_ERROR_WITHOUT_LD_PRELOAD = 6
    MSPTI_ERROR_INNER = 999
    MSPTI_ERROR_FORCE_INT = 0x7FFFFFFF


_NEXT_STEPS = {
    Result.MSPTI_ERROR_INVALID_PARAMETER: (
        "MSPTI does not know this value; an older CANN knows fewer kinds, so look which one is "
        "installed"
    ),
    Result.MSPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED: (
        "another profiler in this process holds MSPTI's only subscription and MSPTI does not say "
        "which: stop the other one (torch_npu profiler, mspti, msMonitor) and try again"
    ),
    Result.MSPTI_ERROR_MAX_LIMIT_REACHED: "the end of the buffer was reached",
    Result.MSPTI_ERROR_DEVICE_OFFLINE: "look at the device with npu-smi info",
    Result.MSPTI_ERROR_QUEUE_EMPTY: "push an id of this kind before popping one",
    Result.MSPTI_ERROR_WITHOUT_LD_PRELOAD: (
        f"this needs libmspti.so in LD_PRELOAD; restart the job after: {PRELOAD_LINE}"
    ),
    Result.MSPTI_ERROR_INNER: (
        "MSPTI failed inside; its log is in ~/ascend/log, or in ASCEND_PROCESS_LOG_PATH"
    ),
}

_NEXT_STEPS_OF_FUNCTION = {
    (
        "msptiActivityEnableMarkerDomain",
        Result.MSPTI_ERROR_INVALID_PARAMETER,
    ): "a domain name must be shorter than 255 bytes",
    (
        "msptiActivityDisableMarkerDomain",
        Result.MSPTI_ERROR_INVALID_PARAMETER,
    ): "a domain name must be shorter than 255 bytes",
    (
        "msptiUnsubscribe",
        Result.MSPTI_ERROR_INVALID_PARAMETER,
    ): "the subscription is not ours any more: another profiler subscribed in between",
}


def result_name(result: int) -> str:
    """Return MSPTI's name of a result code, or "unknown result"."""
    try:
        return Result(result).name
    except ValueError:
        return "unknown result"


def next_step(function: str, result: int) -> str:
    """Return one sentence on what to do after ``function`` returned ``result``."""
    try:
        code = Result(result)
    except ValueError:
        return "this msmon does not know the code: look into mspti_result.h of the installed CANN"
    specific = _NEXT_STEPS_OF_FUNCTION.get((function, code))
    return specific or _NEXT_STEPS.get(code, "")
