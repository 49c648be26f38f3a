"""The C library double as a CANN installation, for every test that needs real native threads.

``cann_root``     a directory with ``lib64/libmspti.so`` (tests/native, MSPTI's ABI and rules)
                  and stubs of CANN's own libraries; skips where there is no C compiler
``cann_environ``  a copy of this process's environment that points msmon at it

The library's switches and recording functions are listed in ``tests/native/double.h`` and
``recording.c``. It has one state per process, as MSPTI has: use it in a subprocess.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_BUILD = Path(__file__).parent / "native" / "build.py"


@pytest.fixture(scope="session")
def cann_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler named cc to build the C library double with")
    root = tmp_path_factory.mktemp("cann")
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
