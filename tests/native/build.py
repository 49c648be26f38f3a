"""Builds the C library double and stubs of CANN's own libraries as one CANN root.

``python tests/native/build.py DIRECTORY`` leaves DIRECTORY/lib64/libmspti.so and the rest; set
``ASCEND_HOME_PATH`` to DIRECTORY to use it. Needs a C compiler named ``cc``.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SOURCES = ("mspti_double.c", "buffers.c", "recording.c", "golden.c")
STUBS = ("libprofapi.so", "libascendalog.so", "libascend_hal.so", "libascendcl.so", "libhccl.so")
FLAGS = ("-O2", "-g", "-fPIC", "-shared", "-pthread", "-std=gnu11", "-Wall", "-Wextra", "-Werror")


def build(root: Path) -> None:
    """Compile everything into ``root/lib64``; raises CalledProcessError when cc fails."""
    here = Path(__file__).parent
    libraries = root / "lib64"
    libraries.mkdir(parents=True, exist_ok=True)
    sources = [str(here / name) for name in SOURCES]
    library = str(libraries / "libmspti.so")
    _compile(*sources, "-fvisibility=hidden", "-o", library, soname="libmspti.so")
    for name in STUBS:
        _compile("-x", "c", "/dev/null", "-o", str(libraries / name), soname=name)


def _compile(*arguments: str, soname: str) -> None:
    subprocess.run(["cc", *FLAGS, f"-Wl,-soname,{soname}", *arguments], check=True)


if __name__ == "__main__":
    build(Path(sys.argv[1]))
