"""MSPTI for a recording: the installed library, or the simulated one where that is asked for.

The library is looked for when the agent starts, and loaded at the first recording. What needs
numpy is imported then too: a job may never be monitored, and numpy reads variables of the job
when it is loaded.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from msmon.errors import LibraryUnavailable
from msmon.ffi import library
from msmon.ffi.mspti import Mspti
from msmon.settings.simulation import simulation_of

if TYPE_CHECKING:
    from msmon.recording.recorder import Recorder

_loaded_in_pid: int | None = None
_simulated: Mspti | None = None


def is_simulated(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether MSMON_SIMULATE puts the simulated MSPTI in the place of libmspti.so."""
    return environ.get("MSMON_SIMULATE", "0") not in ("", "0")


def describe(environ: Mapping[str, str] = os.environ) -> str:
    """Say which library a recording would use.

    Raises LibraryUnavailable when there is none, and UsageError for a wrong MSMON_SIMULATE.
    """
    if not is_simulated(environ):
        return str(library.locate(environ))
    simulation_of(environ)
    return "simulated"


def load(environ: Mapping[str, str] = os.environ) -> Mspti:
    """Load MSPTI, or return the one that this process loaded before.

    Raises LibraryUnavailable when it is absent, or when CANN's own libraries are missing, and
    UsageError for a wrong MSMON_SIMULATE.
    """
    global _simulated
    if not is_simulated(environ):
        return library.load(environ)
    if _simulated is None:
        from msmon.simulation import load_simulated  # only here: no real job needs its modules

        _simulated = load_simulated(environ)
    return _simulated


def open_recorder(purpose: str) -> tuple[Recorder, str]:
    """Load MSPTI and return a recorder, and which library it is and why.

    Raises LibraryUnavailable, also in the child of a process that had loaded it (MSPTI's
    threads are gone there and its locks in an unknown state), and NativeCodeUnavailable.
    """
    global _loaded_in_pid
    if _loaded_in_pid not in (None, os.getpid()):
        raise LibraryUnavailable(
            f"this process was forked from {_loaded_in_pid}, which had loaded MSPTI",
            "start it as a new program, or with multiprocessing's spawn method",
        )
    from msmon.ffi.arena import process_arena  # only here: see the module
    from msmon.recording.recorder import Recorder

    mspti = load()
    _loaded_in_pid = os.getpid()
    return Recorder(mspti, process_arena(), purpose), mspti.origin
