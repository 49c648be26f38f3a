"""Builds the C library double and stubs of CANN's own libraries as one CANN root.

``python tests/native/build.py DIRECTORY`` leaves DIRECTORY/lib64/libmspti.so and the rest; set
``ASCEND_HOME_PATH`` to DIRECTORY to use it. Needs a C compiler named ``cc``.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from msmon.ffi.cann_libraries import CALLED_FUNCTIONS, OPTIONAL_LIBRARIES

SOURCES = ("mspti_double.c", "buffers.c", "recording.c", "golden.c")
FLAGS = ("-O2", "-g", "-fPIC", "-shared", "-pthread", "-std=gnu11", "-Wall", "-Wextra", "-Werror")


def build(root: Path) -> None:
    """Compile everything into ``root/lib64``; raises CalledProcessError when cc fails."""
    here = Path(__file__).parent
    libraries = root / "lib64"
    libraries.mkdir(parents=True, exist_ok=True)
    sources = [str(here / name) for name in SOURCES]
    library = str(libraries / "libmspti.so")
    _compile(*sources, "-fvisibility=hidden", "-o", library, soname="libmspti.so")
    for name in (*CALLED_FUNCTIONS, *OPTIONAL_LIBRARIES):
        build_stub(libraries / name, CALLED_FUNCTIONS.get(name, ()))


def build_stub(path: Path, functions: Iterable[str]) -> None:
    """Compile a library of CANN whose functions do nothing."""
    source = "".join(f"void {function}(void) {{}}\n" for function in functions)
    _compile("-x", "c", "-", "-o", str(path), soname=path.name, source=source)


def _compile(*arguments: str, soname: str, source: str = "") -> None:
    command = ["cc", *FLAGS, f"-Wl,-soname,{soname}", *arguments]
    subprocess.run(command, input=source, text=True, check=True)


if __name__ == "__main__":
    build(Path(sys.argv[1]))
