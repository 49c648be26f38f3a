"""The drop-in names over the C library double.

``library``  the double, in use by every recording of the test
"""

from __future__ import annotations

from typing import Any

import pytest

from msmon.compat.mspti import monitors as mspti_monitors
from msmon.ffi.arena import BufferArena
from msmon.recording import recording
from msmon.recording.recorder import Recorder


@pytest.fixture
def library(native_double: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    arena = BufferArena(slot_count=8, slot_bytes=1 << 20)
    monkeypatch.setattr(
        recording,
        "open_recorder",
        lambda purpose: (Recorder(native_double.mspti, arena, purpose), "the C library double"),
    )
    monkeypatch.setattr(mspti_monitors, "load", lambda: native_double.mspti)
    return native_double
