"""Opening files whose names somebody else may have prepared.

A pipe at the name of a file makes a plain ``open`` wait for ever, a device may have side
effects, and a link leads to a file that nobody meant. So a file is opened without waiting and
without following a link at its name, and what was opened is looked at before it is used.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

_NOT_REGULAR = {errno.ELOOP: "is a link", errno.ENXIO: "is a pipe or device"}


def open_regular(path: Path, flags: int, mode: int = 0o640, *, follow: bool = False) -> int:
    """Return a descriptor of a regular file, opened with ``flags`` as for ``os.open``.

    ``follow``: the caller named this very path, so a link at its end may be followed. Raises
    OSError when the file can't be opened or is something else than a regular file.
    """
    flags |= os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags, mode)
    except OSError as error:
        reason = _NOT_REGULAR.get(error.errno or 0, error.strerror)
        raise OSError(error.errno, reason, str(path)) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "is no regular file", str(path))
    return descriptor
