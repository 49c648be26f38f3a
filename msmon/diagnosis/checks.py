"""The list of all checks, in the order of the output, and the function that runs them."""

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
    installation.other_products,
    shared_memory.stale_segments,
    host.disk,
    daemon.keys,
    daemon.places,
    daemon.reachable,
    daemon.versions_agree,
    daemon.port,
    host.namespaces,
    processes.registered,
    processes.unregistered,
    data.no_data,
)


def examine(surroundings: Surroundings) -> Iterator[Finding]:
    """Run every check, and yield each finding as soon as it is known."""
    for check in CHECKS:
        yield check(surroundings)
