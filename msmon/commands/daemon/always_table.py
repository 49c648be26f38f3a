"""The table ``[always]`` of daemon.toml: a standing order that the daemon gives itself.

Its keys are the options of ``npu-monitor start`` without their dashes. Example:

    [always]
    kind = "Kernel,Communication,Marker"
    job-id = "4711"
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from msmon.bus.messages import Selection
from msmon.commands.asking.parameters import parse_job_ids, parse_ranks
from msmon.daemon.standing.order import (
    StandingOrder,
    check_name,
    check_order_fields,
    options_text,
    selection_text,
)
from msmon.errors import UsageError
from msmon.settings.options import MONITOR_OPTIONS
from msmon.sinks.exports import require_absolute

ALWAYS_TABLE = "always"
DEFAULT_NAME = "daemon.toml"

_OPTIONS = {
    option.flag.lstrip("-"): option for option in MONITOR_OPTIONS if option.flag.startswith("--")
}


def order_of_table(table: Any, origin: str) -> StandingOrder:
    """Return the order that a table gives. Raises UsageError that names ``origin``."""
    try:
        return _order(table, origin)
    except UsageError as error:
        text = f"{origin}: [{ALWAYS_TABLE}]: {error.message}"
        raise UsageError(text, error.next_step) from None


def _order(table: Any, origin: str) -> StandingOrder:
    if not isinstance(table, dict):
        raise UsageError("it must be a table", f"begin it with [{ALWAYS_TABLE}]")
    content = dict(table)
    name = check_name(content.pop("name", DEFAULT_NAME))
    ranks = _selected(content.pop("rank", None), "rank", parse_ranks)
    job_ids = _selected(content.pop("job-id", None), "job-id", parse_job_ids)
    selection = Selection(ranks=ranks, job_ids=job_ids)
    unknown = sorted(set(content) - set(_OPTIONS))
    if unknown:
        known = ", ".join(["name", "rank", "job-id", *_OPTIONS])
        raise UsageError(f"unknown option {', '.join(unknown)}", f"known: {known}")
    given = {_OPTIONS[key].name: value for key, value in content.items()}
    fields = check_order_fields(given, selection)
    if fields.get("log_file"):
        require_absolute(fields["log_file"])
    uid = os.geteuid()
    return StandingOrder(
        name, f"uid {uid}", uid, os.getegid(), selection, fields, time.time_ns(), file=origin
    )


def _selected(value: Any, key: str, parse: Callable[[list[str]], list[Any]]) -> list[Any]:
    """Return ranks or jobs: a number, a text as on the command line, or a list of these."""
    if value is None:
        return []
    values = value if isinstance(value, list) else [value]
    if not all(isinstance(item, (str, int)) and not isinstance(item, bool) for item in values):
        raise UsageError(f"{key} = {str(value)[:80]} is not valid", f'write {key} = "0-3"')
    return parse([str(item) for item in values])


def shown_order(order: StandingOrder) -> list[str]:
    """Return lines for ``--check-config``."""
    text = f"# [{ALWAYS_TABLE}] {order.name} ({order.file}): {selection_text(order.selection)}"
    return [f"{text}: {options_text(order.fields)}"]
