"""MSPTI as the agent gets at it: looked for at the start, loaded at the first recording."""

from __future__ import annotations

import os
from collections.abc import Mapping

from msmon.agent.recorder import Recorder
from msmon.errors import LibraryUnavailable
from msmon.ffi import library
from msmon.ffi.arena import process_arena

_loaded_in_pid: int | None = None


def describe(environ: Mapping[str, str] = os.environ) -> str:
    """Say which library a recording would use. Raises LibraryUnavailable when there is none."""
    if environ.get("MSMON_SIMULATE", "0") not in ("", "0"):
        return "simulated"
    return str(library.locate(environ))


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
    mspti = library.load()
    _loaded_in_pid = os.getpid()
    return Recorder(mspti, process_arena(), purpose), mspti.origin
