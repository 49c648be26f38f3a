"""Finding libmspti.so, and loading it only where that does not abort the process.

Order: already in the process, ``MSMON_LIBMSPTI``, ``ASCEND_HOME_PATH``, ``ASCEND_TOOLKIT_HOME``,
the default roots of old and new CANN, the loader's path.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from msmon.errors import LibraryUnavailable
from msmon.ffi.cann_libraries import load_cann_libraries
from msmon.ffi.loader import handle_in_process, open_library, symbol_address
from msmon.ffi.mspti import Mspti
from msmon.ffi.prototypes import FUNCTIONS
from msmon.threads import Lock

LIBRARY_NAME = "libmspti.so"

ROOT_VARIABLES = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")

DEFAULT_ROOTS = (
    "/usr/local/Ascend/ascend-toolkit/latest",  # CANN up to 8.3
    "/usr/local/Ascend/cann",  # CANN from 8.5 on
    "~/Ascend/ascend-toolkit/latest",
    "~/Ascend/cann",
)

_LOADER_CACHE = Path("/etc/ld.so.cache")
_CACHE_SUFFIX = f"/{LIBRARY_NAME}".encode()


@dataclass(frozen=True)
class Location:
    """Where libmspti.so is and why that one was chosen.

    ``root`` is the CANN installation around it, where one is known.
    """

    path: str
    reason: str
    root: Path | None = None
    in_process: bool = False

    def __str__(self) -> str:
        return f"{self.path} ({self.reason})"


_loaded: Mspti | None = None
_loading = Lock()


def load(environ: Mapping[str, str] = os.environ) -> Mspti:
    """Load MSPTI, or return the one that this process loaded before.

    Raises LibraryUnavailable when it is absent, or when CANN's own libraries are missing or lack
    functions that it calls.
    """
    global _loaded
    with _loading:
        if _loaded is None:
            _loaded = _load(environ)
        return _loaded


def _load(environ: Mapping[str, str]) -> Mspti:
    location = locate(environ)
    without = load_cann_libraries(location.path, location.root, environ)
    origin = f"{location}, without {' and '.join(without)}" if without else str(location)
    handle = _open(location)
    addresses = {function.name: symbol_address(handle, function.name) for function in FUNCTIONS}
    if not any(addresses.values()):
        raise LibraryUnavailable(
            f"{location} exports none of MSPTI's functions",
            "point MSMON_LIBMSPTI at the libmspti.so of an installed CANN",
        )
    return Mspti(addresses, origin)


def locate(environ: Mapping[str, str] = os.environ) -> Location:
    """Find libmspti.so without loading it.

    Raises LibraryUnavailable when LD_PRELOAD or MSMON_LIBMSPTI names one that isn't there, or
    when there is none anywhere.
    """
    preloaded = preload_entry(environ)
    mapped = _path_in_process()
    if mapped is not None:
        reason = "already in the process" + (" through LD_PRELOAD" if preloaded else "")
        return Location(mapped, reason, _root_of(mapped), in_process=True)
    if preloaded is not None:
        raise _not_preloaded(preloaded)
    named = environ.get("MSMON_LIBMSPTI")
    if named:
        if not Path(named).is_file():
            raise LibraryUnavailable(
                f"MSMON_LIBMSPTI names {named}, and there is no such file",
                "correct the variable, or unset it to search the CANN installation",
            )
        return Location(str(Path(named).absolute()), "named by MSMON_LIBMSPTI", _root_of(named))
    for root, reason in _roots(environ):
        path = root / "lib64" / LIBRARY_NAME
        if path.is_file():
            return Location(str(path), reason, root)
    found = _on_loader_path(environ)
    if found is not None:
        return Location(found, "found on the loader's path", _root_of(found))
    searched = ", ".join(str(root / "lib64") for root, _ in _roots(environ))
    raise LibraryUnavailable(
        f"there is no {LIBRARY_NAME} in {searched}, nor on the loader's path",
        "run the set_env.sh of the CANN installation before the job; without an NPU, set "
        "MSMON_SIMULATE=1",
    )


def _open(location: Location) -> int:
    if location.in_process:
        handle = handle_in_process(location.path) or handle_in_process(LIBRARY_NAME)
        if handle is not None:
            return handle
    try:
        return open_library(location.path)
    except OSError as error:
        raise LibraryUnavailable(
            f"{location} can't be loaded: {error}",
            "check that it belongs to this CPU and to the CANN that is installed",
        ) from error


def preload_entry(environ: Mapping[str, str]) -> str | None:
    """Return the entry of LD_PRELOAD that names libmspti.so, if any."""
    entries = environ.get("LD_PRELOAD", "").replace(":", " ").split()
    return next((entry for entry in entries if LIBRARY_NAME in entry), None)


def _not_preloaded(entry: str) -> LibraryUnavailable:
    why = (
        "the variable was set after the process had started"
        if Path(entry).is_file()
        else "there is no such file"
    )
    return LibraryUnavailable(
        f"LD_PRELOAD names {entry}, but it is not loaded in this process: {why}",
        "correct LD_PRELOAD in the shell that starts the job; MSPTI would believe it and deliver "
        "no records",
    )


def _path_in_process() -> str | None:
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
            for line in maps:
                path = line.rstrip("\n").split(maxsplit=5)[5:]
                if path and os.path.basename(path[0]).startswith(LIBRARY_NAME):
                    return path[0]
    except OSError:
        pass  # Without /proc the library is only found by its name.
    return None


def _root_of(path: str) -> Path | None:
    directory = Path(path).absolute().parent
    return directory.parent if directory.name == "lib64" else None


def _roots(environ: Mapping[str, str]) -> Iterator[tuple[Path, str]]:
    for variable in ROOT_VARIABLES:
        if environ.get(variable):
            yield Path(environ[variable]), f"found by {variable}"
    for root in DEFAULT_ROOTS:
        yield Path(root).expanduser(), "found in a default place of CANN"


def _on_loader_path(environ: Mapping[str, str]) -> str | None:
    for directory in environ.get("LD_LIBRARY_PATH", "").split(":"):
        path = Path(directory) / LIBRARY_NAME
        if directory and path.is_file():
            return str(path)
    try:
        cache = _LOADER_CACHE.read_bytes()
    except OSError:  # This system has no cache of the loader.
        return None
    cached = (entry for entry in cache.split(b"\0") if entry.endswith(_CACHE_SUFFIX))
    return next(map(os.fsdecode, cached), None)
