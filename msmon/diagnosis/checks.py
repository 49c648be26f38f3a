"""All checks, in the order in which they are shown, and the run over them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msmon.diagnosis import (
    cann,
    daemon,
    data,
    host,
    installation,
    preload,
    processes,
    shared_memory,
)
from msmon.diagnosis.finding import Finding
from msmon.diagnosis.surroundings import Surroundings

Check = Callable[[Surroundings], Finding]

CHECKS: tuple[Check, ...] = (
    installation.versions,
    cann.cann,
    cann.libmspti_loads,
    preload.preload,
    host.executable_memory,
    installation.use_daemon,
    installation.peer_tools,
    shared_memory.stale_segments,
    host.disk,
    daemon.keys,
    daemon.reachable,
    daemon.versions_agree,
    daemon.port,
    host.namespaces,
    processes.registered,
    processes.unregistered,
    data.no_data,
)


def examine(surroundings: Surroundings) -> Iterator[Finding]:
    """Run every check and yield what each found, as soon as it is known."""
    for check in CHECKS:
        yield check(surroundings)
