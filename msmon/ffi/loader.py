"""The dynamic loader: dlopen and dlsym without what ctypes adds to them.

``ctypes.CDLL`` always asks for RTLD_NOW; MSPTI opens CANN's libraries lazily, and a check that
is stricter than the library itself would refuse installations that work.
"""

from __future__ import annotations

import ctypes
import os

_libc = ctypes.CDLL(None)
_libc.dlopen.restype = ctypes.c_void_p
_libc.dlopen.argtypes = (ctypes.c_char_p, ctypes.c_int)
_libc.dlsym.restype = ctypes.c_void_p
_libc.dlsym.argtypes = (ctypes.c_void_p, ctypes.c_char_p)
_libc.dlerror.restype = ctypes.c_char_p
_libc.dlerror.argtypes = ()


def open_library(name: str) -> int:
    """Load a library lazily and with RTLD_LOCAL and return its handle; it is never closed.

    RTLD_LOCAL because libmspti.so defines ``aclrt*`` and ``Hccl*`` functions, which must not
    take the place of the real ones in libraries loaded later. Raises OSError with the
    loader's own words.
    """
    handle = _libc.dlopen(os.fsencode(name), os.RTLD_LAZY | os.RTLD_LOCAL)
    if not handle:
        raise OSError(os.fsdecode(_libc.dlerror() or b"dlopen failed"))
    return int(handle)


def handle_in_process(name: str) -> int | None:
    """Return the handle of a library that is loaded already, without loading anything."""
    handle = _libc.dlopen(os.fsencode(name), os.RTLD_LAZY | os.RTLD_LOCAL | os.RTLD_NOLOAD)
    return int(handle) if handle else None


def symbol_address(handle: int, name: str) -> int:
    """Return the address of a symbol, 0 when the library has none of this name."""
    return int(_libc.dlsym(handle, name.encode()) or 0)
