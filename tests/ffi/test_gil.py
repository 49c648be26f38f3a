"""Recording while the GIL is held: native callbacks never stall, Python ones hang the process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

_SCRIPT = Path(__file__).parents[1] / "native" / "record_holding_gil.py"
_KERNEL_BYTES = 56
_API_BYTES = 48


def _run(callbacks: str, environ: dict[str, str], limit_s: float) -> str:
    command = [sys.executable, str(_SCRIPT), callbacks]
    run = subprocess.run(
        command, env=environ, stdout=subprocess.PIPE, text=True, timeout=limit_s, check=True
    )
    return run.stdout


def test_native_callbacks_account_for_every_record_while_the_gil_is_held(
    cann_environ: dict[str, str],
) -> None:
    report = json.loads(_run("native", cann_environ, limit_s=60).splitlines()[1])
    emitted, received = report["emitted"], report["received"]
    assert emitted == {"Kernel": 2_000_000, "AclAPI": 400_000}
    assert report["dropped"] == 0
    emitted_bytes = emitted["Kernel"] * _KERNEL_BYTES + emitted["AclAPI"] * _API_BYTES
    assert received["bytes"] + report["overflow_bytes"] == emitted_bytes
    if not report["overflow_bytes"]:
        assert {kind: received[kind] for kind in emitted} == emitted


def test_plain_ctypes_callbacks_hang_in_the_same_program(cann_environ: dict[str, str]) -> None:
    with pytest.raises(subprocess.TimeoutExpired) as stopped:
        _run("python", cann_environ, limit_s=5)
    assert (stopped.value.stdout or b"").decode() == "recording\n"
