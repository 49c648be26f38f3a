"""Reads the communicators of this process, so that a report can name the group of a collective.

Only frameworks that are loaded already are asked, on the collector's thread. Nothing here makes
a communicator, because that is a collective operation and would wait for the other ranks.
Sources: ``torch.distributed.distributed_c10d._world`` and torch_npu's
``profiler_interface.py``; ``mindspore.communication`` as MindSpore's ``profiler_meta_data.py``
uses it.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

Groups = dict[str, dict[str, Any]]

HCCL_WORLD = "hccl_world_group"
"""MindSpore's name of the group of all ranks."""

INTERVAL_S = 5.0
"""Time between two looks for new groups; a job makes them in its first minutes, if at all."""

READ_ERRORS = (AttributeError, KeyError, LookupError, RuntimeError, TypeError, ValueError)
"""What the frameworks' internals raise when they differ from what is expected here, or when a
group ends at this very moment."""


class GroupWatch:
    """Looks for groups every few seconds and at the end of a session.

    Written by the collector's thread only.
    """

    def __init__(self) -> None:
        self._known = ""
        self._next_s = 0.0

    def news(self, at_end: bool = False) -> str:
        """Return the groups as JSON when they have changed since the last look, else "".

        Looks at most once per ``INTERVAL_S``, except at the end.
        """
        now_s = time.monotonic()
        if now_s < self._next_s and not at_end:
            return ""
        self._next_s = now_s + INTERVAL_S
        groups = parallel_group_info()
        if not groups or groups == self._known:
            return ""
        self._known = groups
        return groups


def parallel_group_info() -> str:
    """Return the groups as JSON: communicator name → group_name, group_rank, global_ranks.

    Empty where there are none. For groups of HCCL the communicator must exist; groups of
    other backends are named by PyTorch.
    """
    try:
        groups = _torch_groups() or _mindspore_groups()
    except READ_ERRORS:
        groups = {}
    return json.dumps(groups, sort_keys=True) if groups else ""


def _torch_groups() -> Groups:
    module = sys.modules.get("torch.distributed.distributed_c10d")
    world = getattr(module, "_world", None)
    if module is None or world is None or world.default_pg is None:
        return {}
    rank = world.default_pg.rank()
    groups: Groups = {}
    for group, config in list(world.pg_map.items()):
        ranks_in_group = dict(world.pg_group_ranks.get(group) or {})
        if rank not in ranks_in_group:
            continue
        is_default = group is world.default_pg
        names = _names(group, str(config[0]).lower(), rank, world.pg_names.get(group, ""))
        if names is None:
            continue
        communicator, group_name = names
        groups[communicator] = {
            "group_name": "default_group" if is_default else group_name,
            "group_rank": ranks_in_group[rank],
            "global_ranks": sorted(
                ranks_in_group, key=lambda global_rank: ranks_in_group[global_rank]
            ),
        }
    return groups


def _mindspore_groups() -> Groups:
    module = sys.modules.get("mindspore.communication")
    if module is None or not module.GlobalComm.INITED or module.GlobalComm.BACKEND != "hccl":
        return {}
    groups: Groups = {}
    for name in module._comm_helper._get_group_map():
        communicator = module.get_comm_name(name)
        if communicator:
            groups[str(communicator)] = {
                "group_name": "default_group" if name == HCCL_WORLD else name,
                "group_rank": module.get_rank(name),
                "global_ranks": list(module.get_process_group_ranks(name)),
            }
    return groups


def _names(group: Any, backend: str, rank: int, torch_name: str) -> tuple[str, str] | None:
    """Return communicator and group name; None where HCCL's communicator does not exist yet."""
    if "hccl" not in backend:
        return torch_name, torch_name
    hccl = group._get_backend(sys.modules["torch"].device("npu"))
    communicator = hccl.get_hccl_comm_name(rank, init_comm=False)
    if not communicator:
        return None
    return str(communicator), str(hccl.options.hccl_config.get("group_name", ""))
