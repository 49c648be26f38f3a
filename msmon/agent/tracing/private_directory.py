"""A place for the unfinished file of a trace where nobody else can put anything.

The directory of a trace is often shared, and other users may make files in it. A profiler opens
the file that it is told to write, whatever stands there. A link at that name would have it write
over another file of the job's user, and a FIFO would hold it up for ever.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator

_PREFIX = ".msmon-trace."
_HOLD = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def private_directory(parent: str) -> Iterator[str]:
    """Make a directory within ``parent`` that only this user may enter, and yield a path to it.

    The path leads through a descriptor, so it stays the same directory even if its name is given
    to another one meanwhile. In the end the directory is removed with the file in it, if it is
    still there. Raises OSError, also where somebody has exchanged the directory at once.
    """
    made = tempfile.mkdtemp(prefix=_PREFIX, dir=parent)  # mode 0700, a name nobody can guess
    try:
        descriptor = os.open(made, _HOLD)
    except OSError:
        with contextlib.suppress(OSError):
            os.rmdir(made)
        raise
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise PermissionError(f"{made} was exchanged for a directory that others may enter")
        yield f"/proc/self/fd/{descriptor}"
    finally:
        with contextlib.suppress(OSError):
            for name in os.listdir(descriptor):
                os.unlink(name, dir_fd=descriptor)
        os.close(descriptor)
        with contextlib.suppress(OSError):
            os.rmdir(made)
