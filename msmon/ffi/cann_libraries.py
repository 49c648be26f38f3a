"""CANN's own libraries, without which MSPTI ends the whole process.

MSPTI opens them lazily and looks their functions up by name. Where a library or a function is
missing, it throws a C++ exception. Through ctypes nobody can catch it, so the job would end with
SIGABRT at the start or the stop of a recording. So all of them are looked up here first.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from msmon.errors import LibraryUnavailable
from msmon.ffi.loader import open_library, symbol_address

CALLED_FUNCTIONS: dict[str, tuple[str, ...]] = {
    "libprofapi.so": ("MsprofRegisterProfileCallback", "profSetProfCommand"),
    "libascendalog.so": ("CheckLogLevelForC",),
    "libascend_hal.so": (
        "halGetAPIVersion",
        "halGetDeviceInfo",
        "drvGetDevNum",
        "drvGetDevIDs",
        "prof_drv_get_channels",
        "prof_drv_start",
        "prof_stop",
        "prof_channel_poll",
        "prof_channel_read",
        "halProfDataFlush",
    ),
}
"""Library that MSPTI needs → its functions that MSPTI calls when a recording starts, runs or
stops. From MSPTI's ``*_inject.cpp``. What only some chips need is left out."""

OPTIONAL_LIBRARIES = ("libascendcl.so", "libhccl.so")
"""MSPTI loads and subscribes without these."""

_SHORT_TEXT = 15
"""A compiler may turn a text of up to so many characters into instructions (``std::string``
keeps such a one inside the object). Then the library's file does not hold it as a text."""


def load_cann_libraries(
    mspti: str, root: Path | None, environ: Mapping[str, str]
) -> tuple[str, ...]:
    """Load what MSPTI will open, the way it does; return the optional ones that are missing.

    MSPTI takes ``$ASCEND_HOME_PATH/lib64/NAME`` if readable, else asks the loader for NAME.
    Libraries beside libmspti.so are loaded first, so that the loader knows them by name.
    ``mspti`` is the path of libmspti.so, ``root`` the CANN installation around it.

    Raises LibraryUnavailable when a required library can't be loaded, or lacks a function that
    this libmspti.so calls: MSPTI would abort.
    """
    missing = []
    for name in (*CALLED_FUNCTIONS, *OPTIONAL_LIBRARIES):
        try:
            handle, path = _load(name, root, environ)
        except OSError as error:
            if name in CALLED_FUNCTIONS:
                raise LibraryUnavailable(
                    f"{mspti} needs CANN's {name}, which can't be loaded ({error}); "
                    "MSPTI would abort the process",
                    "run the set_env.sh of the CANN installation before the job, and check that "
                    "the NPU driver's lib64 is in LD_LIBRARY_PATH",
                ) from error
            missing.append(name)
        else:
            _require_functions(mspti, name, handle, path)
    return tuple(missing)


def _load(name: str, root: Path | None, environ: Mapping[str, str]) -> tuple[int, str]:
    """Load one library. Returns its handle, and where it was found. Raises OSError."""
    home = environ.get("ASCEND_HOME_PATH")
    chosen = Path(home) / "lib64" / name if home else None
    if chosen is not None and os.access(chosen, os.R_OK):
        return open_library(str(chosen)), str(chosen)
    beside = root / "lib64" / name if root else None
    if beside is not None and os.access(beside, os.R_OK):
        open_library(str(beside))
    return open_library(name), name


def _require_functions(mspti: str, name: str, handle: int, path: str) -> None:
    absent = [
        function
        for function in CALLED_FUNCTIONS.get(name, ())
        if not symbol_address(handle, function)
    ]
    called = _called(mspti, name, absent) if absent else []
    if called:
        raise LibraryUnavailable(
            f"{path} has no function {', '.join(called)}, which {mspti} calls; MSPTI would abort "
            "the process",
            "install the NPU driver and the CANN version that belong together",
        )


def _called(mspti: str, library: str, functions: list[str]) -> list[str]:
    """Return those of the functions that this version of libmspti.so calls.

    It looks them up by name, so the names stand in its file. Example: versions before
    ``halProfDataFlush`` was used work with drivers that lack it. A short name may not stand there
    (see ``_SHORT_TEXT``); it counts as called where the file has any other name of its library.
    """
    try:
        content = Path(mspti).read_bytes()
    except OSError:
        return []  # nothing is known of it, so nothing is refused
    texts = {name for name in CALLED_FUNCTIONS[library] if name.encode() + b"\0" in content}
    return [name for name in functions if name in texts or (texts and len(name) <= _SHORT_TEXT)]
