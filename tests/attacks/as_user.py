"""Become another user inside a process that has imported all it needs.

That user may not be allowed to read the interpreter's files, so nothing can be imported or
executed afterwards.
"""

from __future__ import annotations

import encodings.ascii
import encodings.idna  # noqa: F401 - these three are imported when they are first needed
import hashlib  # noqa: F401
import importlib
import os
import pkgutil

import msmon.agent
import msmon.bus
import msmon.daemon
import msmon.ffi
import msmon.recording
import msmon.records
import msmon.settings
import msmon.simulation

_PACKAGES = (
    *(msmon.agent, msmon.bus, msmon.ffi, msmon.recording, msmon.records),
    *(msmon.settings, msmon.simulation),
)


def become(uid: int) -> None:
    """Import what an agent or an attack may need, and set user and group for good."""
    for package in _PACKAGES:
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
