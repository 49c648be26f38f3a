"""Tables of an exported database, as data.

The tables without the prefix ``MSMON_`` are those of msMonitor's and msprof's files
(schema 1.2.0), which msprof-analyze reads; the others hold what has no place there.
"""

from __future__ import annotations

from dataclasses import dataclass

from msmon.records.kinds import CommunicationDataType

NOT_APPLICABLE = 0xFFFFFFFF
"""What msprof writes into integer columns that have no value."""


@dataclass(frozen=True)
class Table:
    """A table. Each of ``columns`` is "name TYPE", or "name" alone for an INTEGER."""

    name: str
    columns: tuple[str, ...]

    @property
    def column_names(self) -> tuple[str, ...]:
        """Names without types."""
        return tuple(column.split(" ")[0] for column in self.columns)

    @property
    def create_sql(self) -> str:
        """The CREATE statement. It does nothing where the table exists."""
        typed = [column if " " in column else f"{column} INTEGER" for column in self.columns]
        return f"CREATE TABLE IF NOT EXISTS {self.name} ({', '.join(typed)})"


CANN_API = Table("CANN_API", ("startNs", "endNs", "type", "globalTid", "connectionId", "name"))
TASK = Table(
    "TASK",
    (
        "startNs",
        "endNs",
        "deviceId",
        "connectionId",
        "globalTaskId",
        "globalPid",
        "taskType",
        "contextId",
        "streamId",
        "taskId",
        "modelId",
    ),
)
COMPUTE_TASK_INFO = Table(
    "COMPUTE_TASK_INFO",
    (
        "name",
        "globalTaskId",
        "blockNum",
        "mixBlockNum",
        "taskType",
        "opType",
        "inputFormats",
        "inputDataTypes",
        "inputShapes",
        "outputFormats",
        "outputDataTypes",
        "outputShapes",
        "attrInfo",
        "opState",
        "hf32Eligible",
    ),
)
COMMUNICATION_OP = Table(
    "COMMUNICATION_OP",
    (
        "opName",
        "startNs",
        "endNs",
        "connectionId",
        "groupName",
        "opId",
        "relay",
        "retry",
        "dataType",
        "algType",
        "count NUMERIC",
        "opType",
        "deviceId",
    ),
)
MSTX_EVENTS = Table(
    "MSTX_EVENTS",
    (
        "startNs",
        "endNs",
        "eventType",
        "rangeId",
        "category",
        "message",
        "globalTid",
        "endGlobalTid",
        "domainId",
        "connectionId",
    ),
)
STEP_TIME = Table("STEP_TIME", ("id", "startNs", "endNs"))
MEMCPY_INFO = Table("MEMCPY_INFO", ("globalTaskId", "size", "memcpyOperation"))
MEMORY = Table(
    "MSMON_MEMORY",
    (
        "startNs",
        "endNs",
        "operation",
        "memoryKind",
        "address",
        "size",
        "deviceId",
        "streamId",
        "processId",
        "connectionId",
    ),
)
MEMSET = Table("MSMON_MEMSET", ("globalTaskId", "size", "value"))
HCCL = Table(
    "MSMON_HCCL",
    ("startNs", "endNs", "deviceId", "streamId", "bandwidth REAL", "name", "groupName"),
)
NODE_API = Table("MSMON_NODE_API", CANN_API.columns)
EXTERNAL_CORRELATION = Table(
    "MSMON_EXTERNAL_CORRELATION", ("externalKind", "externalId", "connectionId")
)
GAPS = Table(
    "MSMON_GAPS", ("startNs", "endNs", "stage TEXT", "kind TEXT", "records", "reason TEXT")
)
STATE = Table("MSMON_STATE", ("name TEXT PRIMARY KEY", "value"))

STRING_IDS = Table("STRING_IDS", ("id", "value TEXT"))
META_DATA = Table("META_DATA", ("name TEXT", "value TEXT"))
HOST_INFO = Table("HOST_INFO", ("hostUid TEXT", "hostName TEXT"))
SESSION_TIME_INFO = Table("SESSION_TIME_INFO", ("startTimeNs", "endTimeNs"))
NPU_INFO = Table("NPU_INFO", ("id", "name TEXT"))
RANK_DEVICE_MAP = Table("RANK_DEVICE_MAP", ("rankId", "deviceId"))
CONNECTION_IDS = Table("CONNECTION_IDS", ("id", "connectionId"))
PYTORCH_API = Table(
    "PYTORCH_API",
    (
        "startNs TEXT",
        "endNs TEXT",
        "globalTid",
        "connectionId",
        "name",
        "sequenceNumber",
        "fwdThreadId",
        "inputDtypes",
        "inputShapes",
        "callchainId",
        "type",
    ),
)

_ENUM_COLUMNS = ("id INTEGER PRIMARY KEY", "name TEXT")

ENUMS: dict[Table, dict[int, str]] = {
    Table("ENUM_API_TYPE", _ENUM_COLUMNS): {
        5000: "runtime",
        5500: "communication",
        10000: "node",
        15000: "model",
        20000: "acl",
        50001: "op",
        50002: "queue",
        50003: "trace",
        50004: "mstx",
    },
    Table("ENUM_MSTX_EVENT_TYPE", _ENUM_COLUMNS): {
        0: "marker",
        1: "push/pop",
        2: "start/end",
        3: "marker_ex",
    },
    Table("ENUM_HCCL_DATA_TYPE", _ENUM_COLUMNS): {
        int(member): member.name for member in CommunicationDataType
    },
    Table("ENUM_MEMCPY_OPERATION", _ENUM_COLUMNS): {
        0: "host to host",
        1: "host to device",
        2: "device to host",
        3: "device to device",
        65534: "default",
        65535: "other",
    },
}

SESSION_KEY = "msmon_session_id"
END_KEY = "msmon_session_end"
"""Rows of ``META_DATA``: the session, and why it ended."""

NOT_ENDED = "unknown"
"""Value of ``END_KEY`` while the session goes on."""

META_ROWS = {
    "SCHEMA_VERSION_MAJOR": "1",
    "SCHEMA_VERSION_MINOR": "2",
    "SCHEMA_VERSION_MICRO": "0",
    "SCHEMA_VERSION": "1.2.0",
    "msmon_unsigned_64_bit": "values from 2^63 on are stored as value - 2^64",
    "msmon_connection_id": (
        "CANN_API rows of further levels of the same call hold correlation id + type * 2^40"
    ),
}

FIRST_TABLES = (
    STRING_IDS,
    META_DATA,
    HOST_INFO,
    SESSION_TIME_INFO,
    NPU_INFO,
    RANK_DEVICE_MAP,
    CONNECTION_IDS,
    PYTORCH_API,
    *ENUMS,
    GAPS,
    STATE,
)
"""Tables that every file has from its first moment; the others come with their first row."""

API_LEVELS = {"API": 10000, "NodeAPI": 10000, "AclAPI": 20000, "RuntimeAPI": 5000}
"""Kind name → ``CANN_API.type``."""

MEMCPY_OPERATIONS = (65535, 0, 1, 2, 3, 65534)
"""``msptiActivityMemcpyKind`` → ``MEMCPY_INFO.memcpyOperation``."""

MARKER_CONNECTION_OFFSET = 4_000_000_000
"""Added to a marker's id to link ``MSTX_EVENTS`` with its ``TASK`` row."""

LEVEL_CONNECTION_SHIFT = 40
"""Further levels of a call add their number at this bit to the correlation id, which is smaller."""

EVENT_MARK = 0
"""``MSTX_EVENTS.eventType`` of a mark."""

EVENT_RANGE = 2
"""``MSTX_EVENTS.eventType`` of a range."""
