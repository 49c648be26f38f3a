"""Through every fault, each record is either written or counted as dropped."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from faults import FaultRun, Load

pytestmark = pytest.mark.alone

SHORT = Load(
    ranks=8,
    rate=400,
    calm_s=0.3,
    away_s=0.5,
    stopped_s=5.0,
    slow_s=2.0,
    stall_s=1.0,
    hold_s=3.0,
    interval_s=1.0,
    disk_bytes=512 << 20,
)


def test_every_record_is_written_or_counted_as_dropped() -> None:
    directory = Path(tempfile.mkdtemp(prefix="msmon-")).resolve()
    report = FaultRun(directory, SHORT, print).run()
    for name, value in {**dict(report.faults), **report.figures}.items():
        print(f"{name}: {value}")
    assert report.problems == []
    shutil.rmtree(directory)
