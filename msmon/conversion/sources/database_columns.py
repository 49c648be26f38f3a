"""Queries of an exported database, and values that several of its columns share."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from msmon.conversion.sources import checked_values as checked
from msmon.conversion.sources.checked_values import unsigned
from msmon.records.kinds import INVALID_ID
from msmon.sinks.sqlite import schema

MARKER_TASK = "MsTx"
"""Text of the task type of a marker on a device."""

HOST_EVENTS = (
    "SELECT startNs, endNs, eventType, message, globalTid, endGlobalTid, domainId, connectionId "
    "FROM MSTX_EVENTS"
)
COLLECTIVES = (
    "SELECT startNs, endNs, connectionId, groupName, dataType, algType, count, opType, deviceId "
    "FROM COMMUNICATION_OP"
)


def all_columns(table: schema.Table) -> str:
    return f"SELECT {', '.join(table.column_names)} FROM {table.name}"


def id32(value: Any) -> int:
    """Return a device or stream id; -1, and what msprof writes for none, is MSPTI's invalid id."""
    return checked.whole(value, -(2**31), INVALID_ID) & INVALID_ID


def marker_id(connection: Any) -> int:
    return (unsigned(connection) - schema.MARKER_CONNECTION_OFFSET) % 2**64


def split_tid(global_tid: Any) -> tuple[int, int]:
    joined = unsigned(global_tid)
    return joined >> 32, joined & INVALID_ID


def task_query(tables: Collection[str], strings: Mapping[int, str]) -> str:
    """Return the query of TASK with the tables that say more of a task, where they exist."""
    joined, columns = "", []
    for table, column in (
        ("COMPUTE_TASK_INFO", "name"),
        ("MEMCPY_INFO", "size"),
        ("MEMCPY_INFO", "memcpyOperation"),
        ("MSMON_MEMSET", "size"),
        ("MSMON_MEMSET", "value"),
        ("MSTX_EVENTS", "message"),
        ("MSTX_EVENTS", "domainId"),
    ):
        if table not in tables:
            columns.append("NULL")
            continue
        columns.append(f"{table}.{column}")
        if f" {table} " not in joined and table != "MSTX_EVENTS":
            joined += f" LEFT JOIN {table} ON {table}.globalTaskId = TASK.globalTaskId "
    return (
        "SELECT TASK.startNs, TASK.endNs, TASK.deviceId, TASK.streamId, TASK.connectionId, "
        f"TASK.taskType, {', '.join(columns)} FROM TASK{joined}{_marker_join(tables, strings)}"
    )


def _marker_join(tables: Collection[str], strings: Mapping[int, str]) -> str:
    """Device markers take their texts from the host's; kernels must not find any."""
    marker_types = [number for number, text in strings.items() if text == MARKER_TASK]
    if "MSTX_EVENTS" not in tables:
        return ""
    return (
        " LEFT JOIN MSTX_EVENTS ON MSTX_EVENTS.connectionId = TASK.connectionId "
        f"AND TASK.taskType = {marker_types[0] if marker_types else -1}"
    )
