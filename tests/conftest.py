"""The C library double as a CANN installation, for every test that needs real native threads.

``cann_root``     a directory with ``lib64/libmspti.so`` (tests/native, MSPTI's ABI and rules)
                  and stubs of CANN's own libraries; skips where there is no C compiler
``cann_environ``  a copy of this process's environment that points msmon at it: for subprocesses
``native_double`` the library loaded into this process with a state of its own (a fresh copy)

The library's switches and recording functions are listed in ``tests/native/double.h`` and
``recording.c``.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import hypothesis
import pytest

from msmon.ffi.mspti import Mspti
from msmon.ffi.prototypes import FUNCTIONS
from msmon.records.kinds import ActivityKind

pytest_plugins = [
    "fixtures.waiting",
    "fixtures.running_daemon",
    "fixtures.sink_input",
    "fixtures.one_rank_job",
]

_BUILD = Path(__file__).parent / "native" / "build.py"


def pytest_configure() -> None:
    """Take SIGINT as usual even where the tests run in the background of a shell, which
    ignores it: what the tests start inherits that, and could not be interrupted."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


hypothesis.settings.register_profile(
    "no clock", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("no clock")  # a busy machine is no fault of the code


LONG_FIRST = ("delivery", "attacks", "judges", "frameworks")
"""Folders of tests/ whose tests begin first where tests run side by side.

A long test that begins last keeps one processor busy while the others have nothing to do.
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Bring the long tests to the front."""
    items.sort(key=_place)


def _place(item: pytest.Item) -> int:
    folder = item.path.relative_to(Path(__file__).parent).parts[0]
    return LONG_FIRST.index(folder) if folder in LONG_FIRST else len(LONG_FIRST)


@pytest.fixture(scope="session")
def cann_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built once for all workers of pytest-xdist, whose directories lie beside each other."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler named cc to build the C library double with")
    own = tmp_path_factory.getbasetemp()
    root = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "cann"
    with root.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not root.exists():
            subprocess.run([sys.executable, str(_BUILD), str(root)], check=True)
    return root


@pytest.fixture
def cann_environ(cann_root: Path) -> dict[str, str]:
    environ = {
        name: value
        for name, value in os.environ.items()
        if name != "LD_PRELOAD" and not name.startswith(("MSMON", "MSPTI", "ASCEND"))
    }
    environ["ASCEND_HOME_PATH"] = str(cann_root)
    return environ


class NativeDouble:
    """The C library double: ``mspti`` for msmon, ``c`` for the library's own functions.

    ``c`` releases the GIL; ``c_holding_gil`` keeps it, as an extension module may.
    """

    def __init__(self, path: Path) -> None:
        self.c = ctypes.CDLL(str(path))
        self.c_holding_gil = ctypes.PyDLL(str(path))
        for name in ("emitted", "dropped", "requests", "completions", "flushes"):
            getattr(self.c, f"double_{name}").restype = ctypes.c_uint64
        self.c.double_deliver_held.restype = ctypes.c_size_t
        addresses = {
            function.name: ctypes.cast(self.c[function.name], ctypes.c_void_p).value or 0
            for function in FUNCTIONS
        }
        self.mspti = Mspti(addresses, f"C library double {path.name}")

    def record(self, kind: ActivityKind, count: int = 1) -> None:
        """Record on the calling thread, without the GIL."""
        self.c.double_record(ctypes.c_uint32(kind), ctypes.c_uint64(count))

    def start_recording(
        self,
        threads: int,
        kinds: Sequence[ActivityKind],
        records_each: int = 0,
        records_per_second: int = 0,
    ) -> None:
        """Start native threads that record ``kinds`` in turn (0 records: until stopped)."""
        mix = (ctypes.c_uint32 * len(kinds))(*kinds)
        self.c.double_start_recording(
            ctypes.c_size_t(threads),
            ctypes.c_uint64(records_per_second),
            mix,
            ctypes.c_size_t(len(kinds)),
            ctypes.c_uint64(records_each),
        )

    def join_recording(self) -> None:
        """Wait until every thread has recorded all it was told to."""
        self.c.double_join_recording()

    def stop_recording(self) -> None:
        self.c.double_stop_recording()

    def emitted(self, *kinds: ActivityKind) -> int:
        """Return how many records of these kinds were reported, kept or not."""
        return sum(self.c.double_emitted(ctypes.c_uint32(kind)) for kind in kinds)


@pytest.fixture
def native_double(cann_root: Path, tmp_path: Path) -> NativeDouble:
    copy = tmp_path / "double.so"  # another file is another library to the loader
    shutil.copy(cann_root / "lib64" / "libmspti.so", copy)
    return NativeDouble(copy)
