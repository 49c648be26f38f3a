"""Shifts the wall clock of every Python process that finds this directory on PYTHONPATH.

SHIFTED_CLOCK names a file of 8 bytes with the shift in ns, which may change at any time.
"""

import mmap
import os
import struct
import time

_descriptor = os.open(os.environ["SHIFTED_CLOCK"], os.O_RDONLY)
_shift = mmap.mmap(_descriptor, 8, prot=mmap.PROT_READ)
_time_ns = time.time_ns


def _shifted_ns():
    return _time_ns() + struct.unpack("<q", _shift[:8])[0]


time.time_ns = _shifted_ns
time.time = lambda: _shifted_ns() / 1e9
