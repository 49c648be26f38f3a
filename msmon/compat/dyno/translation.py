"""What dyno's options ask of our daemon, and the configuration text that dyno prints for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msmon.bus.messages import MonitorRequest, Reply, Selection, StatusRequest
from msmon.bus.rows import StatusRow
from msmon.bus.words import GONE, MonitorAction, Outcome, ProcessState
from msmon.commands.asking.connection import Connection
from msmon.commands.asking.parameters import parse_pids, parse_ranks
from msmon.compat.frameworks.config_text import START_KEY, STOP_KEY
from msmon.settings.options import MONITOR_OPTION, MONITOR_OPTIONS, Option
from msmon.settings.trace_options import TRACE_OPTIONS

DYNO_ORDER = (
    *("report_interval_s", "duration_s", "kinds", "log_file", "export_type"),
    *("jsonl_rotate_lines", "jsonl_rotate_files", "filter"),
)
EMPTY_BY_DEFAULT = frozenset({"jsonl_rotate_lines", "jsonl_rotate_files"})


def monitor(connection: Connection, action: MonitorAction, fields: dict[str, Any]) -> Reply:
    """Ask for npu-monitor; a start where it runs already is an update, as with dyno."""
    if action == MonitorAction.STOP:
        return connection.request(MonitorRequest(action))
    rows = connection.request(StatusRequest()).status_rows
    running = [row.pid for row in rows if row.state == ProcessState.MONITORING]
    idle = [row.pid for row in rows if row.state not in (ProcessState.MONITORING, *GONE)]
    changes = {name: fields[name] for name in fields if MONITOR_OPTION[name].updatable}
    replies = []
    if running and changes:
        replies.append(_ask(connection, MonitorAction.UPDATE, changes, running))
    if action == MonitorAction.START and (idle or not running):
        replies.append(_ask(connection, MonitorAction.START, fields, idle if running else []))
    if not replies:
        return Reply(Outcome.FAILED, "nothing to change: nothing runs, or no option was given")
    return Reply(replies[0].outcome, replies[0].text, rows=[row for r in replies for row in r.rows])


def _ask(
    connection: Connection, action: MonitorAction, fields: dict[str, Any], pids: list[int]
) -> Reply:
    return connection.request(MonitorRequest(action, fields, Selection(pids)))


def selection(connection: Connection, pids: str, job_id: str, ranks: str) -> Selection:
    """Return whom dyno's options name: 0 is everybody, a pid stands for its children too.

    Raises UsageError for what is no list of numbers.
    """
    everybody = "0" in [item.strip() for item in pids.split(",")]
    wanted = [] if everybody else parse_pids([pids])
    if wanted and connection.same_machine:
        wanted = _with_children(wanted, connection.request(StatusRequest()).status_rows) or wanted
    jobs = [] if job_id.strip() in ("", "0") else [job_id.strip()]
    return Selection(wanted, parse_ranks([ranks]) if ranks.strip() else [], jobs)


def _with_children(wanted: Sequence[int], rows: Sequence[StatusRow]) -> list[int]:
    return [row.pid for row in rows if set(_line_of(row.pid)) & set(wanted)]


def _line_of(pid: int) -> list[int]:
    """Return a process of this machine and its ancestors, as far as they can be read."""
    line: list[int] = []
    while pid > 1 and pid not in line:
        line.append(pid)
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
            pid = int(stat.rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            break
    return line


def monitor_text(starting: bool, stopping: bool, fields: Mapping[str, Any]) -> str:
    """Return the text that dyno prints for npu-monitor: every key, in its order."""
    options = {option.name: option for option in MONITOR_OPTIONS}
    lines = [f"{START_KEY}={_text(starting)}", f"{STOP_KEY}={_text(stopping)}"]
    lines += [_line(options[name], fields) for name in DYNO_ORDER]
    return "\n".join(lines)


def shown_trace_text(fields: Mapping[str, Any], ranks: Sequence[int]) -> str:
    """Return the text that dyno prints for nputrace."""
    lines = [_line(option, fields) for option in TRACE_OPTIONS]
    lines.append(f"PROFILE_RANK_LIST={','.join(map(str, ranks)) or 'None'}")
    return "\n".join(lines)


def _line(option: Option, fields: Mapping[str, Any]) -> str:
    default = "" if option.name in EMPTY_BY_DEFAULT else option.default
    default = "Marker" if option.name == "kinds" else default
    return f"{option.msmonitor_key}={_text(fields.get(option.name, default))}"


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
