"""Checks of what is installed: versions, other products with the same names, the environment."""

from __future__ import annotations

import platform
import re
import shutil
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distributions, version
from pathlib import Path

import msmon
from msmon.agent.ranks.evidence import is_on
from msmon.bus.messages import PROTOCOL_MAJOR, PROTOCOL_MINOR
from msmon.diagnosis.finding import Finding, ok, warn
from msmon.diagnosis.proc import processes
from msmon.diagnosis.surroundings import Surroundings

LIBRARIES = ("pyzmq", "msgpack", "numpy", "click", "rich")
OTHER_DISTRIBUTIONS = frozenset({"mindstudio-monitor", "msmonitor-plugin", "dynolog"})
OTHER_PROGRAMS = ("dynolog", "dyno")
DROP_IN_PACKAGES = ("IPCMonitor", "msmonitor")
"""Packages that frameworks import. Both msmon and msMonitor install them."""

_SCRIPT_BYTES = 512


def versions(_: Surroundings) -> Finding:
    """Report the versions of msmon, of Python and of the libraries that msmon imports."""
    libraries = ", ".join(f"{name} {_version(name)}" for name in LIBRARIES)
    return ok(
        "versions",
        f"msmon {msmon.__version__} (protocol {PROTOCOL_MAJOR}.{PROTOCOL_MINOR}), Python "
        f"{platform.python_version()} on {platform.machine()}, {libraries}",
    )


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "without metadata"


def other_products(surroundings: Surroundings) -> Finding:
    """Report msMonitor or dynolog on this machine. They use msmon's names, port and MSPTI."""
    check = "other tools"
    seen = [*_other_distributions(), *_other_programs(surroundings)]
    if not seen:
        return ok(check, "no mindstudio_monitor or dynolog beside msmon")
    return warn(
        check,
        "mindstudio_monitor or dynolog is here too; whoever was installed last owns IPCMonitor "
        "and dyno, and only one of both can use MSPTI in a process",
        "uninstall it (pip uninstall mindstudio_monitor), install msmon again, stop dynolog",
        *seen,
    )


def _other_distributions() -> Iterator[str]:
    for distribution in distributions():
        name = re.sub(r"[-_.]+", "-", distribution.metadata["Name"] or "").lower()
        if name in OTHER_DISTRIBUTIONS:
            yield f"{name} {distribution.version} in {distribution.locate_file('')}"
        elif name != "msmon":
            yield from _owned_names(name, distribution)


def _owned_names(name: str, distribution: Distribution) -> Iterator[str]:
    top = (distribution.read_text("top_level.txt") or "").split()
    for package in DROP_IN_PACKAGES:
        if package in top:
            yield f"the package {package} belongs to {name} {distribution.version}"


def _other_programs(surroundings: Surroundings) -> Iterator[str]:
    for program in OTHER_PROGRAMS:
        path = shutil.which(program, path=surroundings.environ.get("PATH"))
        if path is not None and not _is_ours(Path(path)):
            yield f"the program {path}"
    for process in processes():
        if process.name in ("dynolog", "dynolog_daemon"):
            yield f"dynolog runs as pid {process.pid}"


def _is_ours(script: Path) -> bool:
    """Return whether a program is the ``dyno`` that msmon installs."""
    try:
        with script.open("rb") as file:
            return b"msmon" in file.read(_SCRIPT_BYTES)
    except OSError:
        return False


def use_daemon(surroundings: Surroundings) -> Finding:
    """Report MSMONITOR_USE_DAEMON of this shell. Jobs inherit it; "1" has them monitored."""
    check = "MSMONITOR_USE_DAEMON"
    remedy = "start the job with: msmon run COMMAND; or before it: export MSMONITOR_USE_DAEMON=1"
    value = surroundings.environ.get(check)
    kineto = surroundings.environ.get("KINETO_USE_DAEMON")
    if value is None and is_on(kineto):
        return warn(check, "not set; KINETO_USE_DAEMON counts for torch_npu only", remedy)
    if value is None:
        return warn(check, "not set here: jobs started here are not monitored", remedy)
    if not value.strip().isdecimal():
        return warn(check, f"is {value!r}; the frameworks understand only 1 and 0", remedy)
    if not is_on(value):
        return warn(check, f"is {value!r}: off", remedy)
    return ok(check, f"is {value}")
