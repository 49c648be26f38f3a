"""Checks of CANN and libmspti.so: where they are, which version, and whether they load."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from msmon.diagnosis.finding import Finding, fail, ok, warn
from msmon.diagnosis.surroundings import Surroundings
from msmon.errors import LibraryUnavailable
from msmon.ffi.library import locate
from msmon.recording.loading import is_simulated

PROBE = ("-m", "msmon.diagnosis.mspti_probe")
PROBE_LIMIT_S = 8.0

_VERSION = re.compile(r"^\s*version\s*=\s*(\S+)", re.IGNORECASE | re.MULTILINE)


def cann(surroundings: Surroundings) -> Finding:
    """Report where CANN is and its version. Loads nothing."""
    check = "CANN"
    if is_simulated(surroundings.environ):
        return ok(check, "not needed: MSMON_SIMULATE puts a simulated MSPTI in its place")
    try:
        location = locate(surroundings.environ)
    except LibraryUnavailable as error:
        return warn(check, error.message, error.next_step)
    if location.root is None:
        return warn(
            check,
            f"{location}, which lies in no CANN installation",
            "run the set_env.sh of the CANN installation before the job",
        )
    version = cann_version(location.root) or "of unknown version"
    return ok(check, f"{version} in {location.root}, {location}")


def cann_version(root: Path) -> str:
    """Return the version of the CANN in ``root``, or "" if it is unknown.

    It is read from ``ascend_*_install.info``, as torch_npu does.
    """
    for pattern in ("ascend_*_install.info", "*/ascend_*_install.info"):
        for path in sorted(root.glob(pattern)):
            try:
                found = _VERSION.search(path.read_text("utf-8", errors="replace"))
            except OSError:
                continue
            if found:
                return found[1]
    return ""


def libmspti_loads(surroundings: Surroundings) -> Finding:
    """Report whether libmspti.so loads and subscribes.

    A child process tries it, because a library that fails to load can abort its process.
    """
    check = "libmspti"
    if not is_simulated(surroundings.environ):
        try:
            locate(surroundings.environ)
        except LibraryUnavailable:
            return warn(check, "not tried: there is none to load", "see CANN above")
    try:
        done = subprocess.run(
            [sys.executable, *PROBE],
            env=dict(surroundings.environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PROBE_LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        return fail(
            check,
            f"loading and subscribing took more than {PROBE_LIMIT_S:g} s in a process of its own",
            "look at the NPU driver (npu-smi info) and at the system log",
        )
    except OSError as error:
        return fail(check, f"no process can be started: {error}", "free memory and processes")
    if done.returncode != 0:
        return _died(check, done)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if "error" in result:
        return fail(check, result["error"], result["next_step"])
    return ok(check, f"loads and subscribes: {result['origin']}")


def _died(check: str, done: subprocess.CompletedProcess[str]) -> Finding:
    said = [line for line in done.stderr.splitlines() if line.strip()][-3:]
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        text = f"loading it ended a process with {name}; it would end the job too"
    else:
        text = f"the process that should load it ended with {done.returncode}"
    return fail(
        check,
        text,
        "check that driver, firmware and CANN belong together, and that the driver's lib64 is in "
        "LD_LIBRARY_PATH",
        *said,
    )
