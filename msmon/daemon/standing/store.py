"""The file of each owner's standing orders, in the daemon's state directory.

What is read is checked like a command, because an older or newer daemon, a damaged disk or an
administrator may have written it.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from msmon.bus.keys import write_replacing
from msmon.bus.messages import MAX_JOBS, MAX_NUMBERS, Selection
from msmon.bus.places import Unguarded
from msmon.daemon.access.owners import make_owner_directory, owner_directory
from msmon.daemon.standing.order import (
    LeftAlone,
    StandingOrder,
    check_name,
    check_order_fields,
)
from msmon.errors import MsmonError

ORDERS_FILE = "orders.json"
MAX_FILE_BYTES = 8 << 20

_log = logging.getLogger(__name__)


class OrderStore:
    """Reads and writes orders. Runs on the broker's loop; a thread of its own writes the files."""

    def __init__(self, state_directory: Path) -> None:
        self._state_directory = state_directory
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="msmon-orders")

    def load(self) -> list[StandingOrder]:
        """Return all orders that can be read; of what can't be, the log tells."""
        found: list[StandingOrder] = []
        for path in sorted(self._state_directory.glob(f"owners/*/{ORDERS_FILE}")):
            try:
                found += _read(path)
            except (OSError, ValueError, TypeError, KeyError, MsmonError) as error:
                _log.warning("%s can't be read, so no order in it stands: %s", path, error)
        return found

    async def save(self, owner: str, orders: Iterable[StandingOrder]) -> str:
        """Write all orders of an owner; return why it failed, or an empty text."""
        text = json.dumps({"owner": owner, "orders": [_as_json(order) for order in orders]})
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._writer, self._write, owner, text)

    def _write(self, owner: str, text: str) -> str:
        directory = owner_directory(self._state_directory, owner)
        try:
            make_owner_directory(directory)
            write_replacing(directory / ORDERS_FILE, text, 0o600)
        except (OSError, Unguarded) as error:
            _log.error("%s can't be written: %s", directory / ORDERS_FILE, error)
            return str(error)
        return ""

    def close(self) -> None:
        """Wait until all is written."""
        self._writer.shutdown()


def _as_json(order: StandingOrder) -> dict[str, Any]:
    return {
        "name": order.name,
        "uid": order.uid,
        "gid": order.gid,
        "selection": vars(order.selection),
        "fields": dict(order.fields),
        "given_ns": order.given_ns,
        "left_alone": [
            {"selection": vars(item.selection), "owner": item.owner} for item in order.left_alone
        ],
    }


def _read(path: Path) -> list[StandingOrder]:
    """Return the orders of a file. An order of which something is wrong is left out.

    Raises OSError, and what shows that it is no such file: ValueError, TypeError or KeyError.
    """
    if path.stat().st_size > MAX_FILE_BYTES:
        raise ValueError("it is too large")
    content = json.loads(path.read_text(encoding="utf-8"))
    owner = str(content["owner"])
    if owner_directory(Path(), owner).name != path.parent.name:
        raise ValueError(f"it is not in the directory of {owner!r}")
    orders = []
    for item in content["orders"]:
        try:
            orders.append(_order(owner, item))
        except (ValueError, TypeError, KeyError, MsmonError) as error:
            _log.warning("%s: an order can't be read and does not stand: %s", path, error)
    return orders


def _order(owner: str, item: Mapping[str, Any]) -> StandingOrder:
    selection = _selection(item["selection"])
    return StandingOrder(
        check_name(item["name"]),
        owner,
        int(item["uid"]),
        int(item["gid"]),
        selection,
        check_order_fields(item["fields"], selection),
        int(item["given_ns"]),
        tuple(
            LeftAlone(_selection(each["selection"]), str(each["owner"]))
            for each in item["left_alone"]
        ),
    )


def _selection(item: Mapping[str, Any]) -> Selection:
    pids = [int(pid) for pid in item["pids"]]
    ranks = [int(rank) for rank in item["ranks"]]
    jobs = [str(job) for job in item["job_ids"]]
    if max(len(pids), len(ranks)) > MAX_NUMBERS or len(jobs) > MAX_JOBS:
        raise ValueError("a selection is too long")
    return Selection(pids, ranks, jobs)
