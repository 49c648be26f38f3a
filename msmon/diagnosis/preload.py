"""The check of LD_PRELOAD: whether it is needed, set, and loads libmspti.so into a process."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from msmon.diagnosis.cann import cann_version
from msmon.diagnosis.finding import Finding, fail, ok, warn
from msmon.diagnosis.proc import SeenProcess
from msmon.diagnosis.surroundings import Surroundings
from msmon.errors import LibraryUnavailable
from msmon.ffi.library import LIBRARY_NAME, Location, locate
from msmon.recording.loading import is_simulated

FREE_OF_PRELOAD = (9, 0)
"""Since this version of CANN only PRELOADED_KINDS need LD_PRELOAD; before, all kinds do."""
PRELOADED_KINDS = "Hccl, Memory, MemSet and MemCpy"


def preload(surroundings: Surroundings) -> Finding:
    """Report whether LD_PRELOAD is needed here, and whether it names libmspti.so."""
    check = "LD_PRELOAD"
    environ = surroundings.environ
    if is_simulated(environ):
        return ok(check, "not needed: MSPTI is simulated")
    location = _found(environ)
    entries = preload_entries(environ)
    ours = [entry for entry in entries if LIBRARY_NAME in entry]
    missing = [entry for entry in entries if "/" in entry and not Path(entry).is_file()]
    if missing:
        return fail(
            check,
            f"LD_PRELOAD names {', '.join(missing)}, and there is no such file; the loader only "
            "warns",
            f"correct it: {preload_line(location)}",
        )
    if ours:
        return ok(check, f"contains {', '.join(ours)}")
    return _without_preload(check, location, entries)


def _without_preload(check: str, location: Location | None, entries: list[str]) -> Finding:
    if location is None:
        return ok(check, f"not set, and there is no {LIBRARY_NAME} to put there")
    others = f"LD_PRELOAD has only {', '.join(entries)}" if entries else "not set"
    if needs_preload(location):
        version = cann_version(location.root) if location.root else ""
        return warn(
            check,
            f"{others}, and CANN {version} needs it: kernels and names would be missing",
            f"in the shell that starts the job: {preload_line(location)}",
        )
    return ok(
        check,
        f"{others}; needed only for {PRELOADED_KINDS}: {preload_line(location)}",
    )


def needs_preload(location: Location) -> bool:
    """Return whether this CANN needs LD_PRELOAD for all kinds. False if its version is unknown."""
    version = cann_version(location.root) if location.root else ""
    number = re.match(r"(\d+)\.(\d+)", version)
    return number is not None and (int(number[1]), int(number[2])) < FREE_OF_PRELOAD


def library_to_preload(environ: Mapping[str, str]) -> str:
    """Return the libmspti.so to add to LD_PRELOAD for a job, or "" if nothing must be added."""
    if is_simulated(environ) or any(LIBRARY_NAME in item for item in preload_entries(environ)):
        return ""
    location = _found(environ)
    return str(location.path) if location is not None and needs_preload(location) else ""


def preload_line(location: Location | None) -> str:
    """Return the shell command that sets LD_PRELOAD."""
    path = location.path if location else f"$ASCEND_HOME_PATH/lib64/{LIBRARY_NAME}"
    return f"export LD_PRELOAD={path}"


def preload_entries(environ: Mapping[str, str]) -> list[str]:
    """Return the libraries in LD_PRELOAD. Colons or blanks separate them (ld.so(8))."""
    return environ.get("LD_PRELOAD", "").replace(":", " ").split()


def preload_problem(process: SeenProcess, environ: Mapping[str, str]) -> str:
    """Return what is wrong if LD_PRELOAD of a process names libmspti.so and it isn't loaded.

    Returns "" if nothing is wrong or its memory map can't be read.
    """
    ours = [entry for entry in preload_entries(environ) if LIBRARY_NAME in entry]
    maps = process.maps
    if not ours or maps is None or LIBRARY_NAME in maps:
        return ""
    return f"LD_PRELOAD names {ours[0]}, but it is not loaded there; correct the path"


def _found(environ: Mapping[str, str]) -> Location | None:
    """Return libmspti.so as it is found without LD_PRELOAD, which may name a wrong path."""
    without = {name: value for name, value in environ.items() if name != "LD_PRELOAD"}
    try:
        return locate(without)
    except LibraryUnavailable:
        return None
