"""Memory and CPU of the Monitor API for two million kernels of the simulated MSPTI.

The baseline holds the same records as one Python object each, in the same process.

    python benchmarks/monitor_api.py
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from msmon import ActivityKind, Monitor

RECORDS = 2_000_000
OBJECTS = 500_000
TIMEOUT_S = 120.0


def resident_mb() -> float:
    """Return the resident memory of this process in MB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("no VmRSS in /proc/self/status")


def main() -> None:
    """Collect records, make objects of a part of them, and print the memory of both."""
    os.environ.setdefault("MSMON_SIMULATE", "rate=800000")
    before_mb, before_cpu_s = resident_mb(), time.process_time()
    deadline_s = time.monotonic() + TIMEOUT_S
    with Monitor([ActivityKind.Kernel], max_records=RECORDS) as monitor:
        while not monitor.dropped and time.monotonic() < deadline_s:
            time.sleep(0.05)
    cpu_s = time.process_time() - before_cpu_s
    kernels = monitor.get_result()[ActivityKind.Kernel]
    columns_mb = resident_mb() - before_mb
    print(f"{len(kernels):,} kernels as columns: {columns_mb:.0f} MB, {cpu_s:.2f} CPU-seconds")

    before_mb = resident_mb()
    objects = kernels[:OBJECTS]
    objects_mb = (resident_mb() - before_mb) * len(kernels) / len(objects)
    print(f"{len(kernels):,} kernels as objects: {objects_mb:.0f} MB (from {len(objects):,})")
    print(f"RATIO monitor_memory_vs_objects {objects_mb / columns_mb:.2f}")


if __name__ == "__main__":
    main()
