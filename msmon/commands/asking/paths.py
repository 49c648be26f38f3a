"""The path of ``--log-file`` as the daemon, or the job, must see it."""

from __future__ import annotations

import os

from msmon.commands.asking.connection import Connection
from msmon.errors import UsageError


def absolute_path(path: str, connection: Connection) -> str:
    """Return ``path`` as the daemon must see it: absolute, with ``~`` expanded.

    Links and ``..`` are left to the daemon, which resolves them where it writes. Raises
    UsageError for a relative path on another machine.
    """
    if connection.same_machine:
        path = os.path.expanduser(path)
    if os.path.isabs(path):
        return path
    if not connection.same_machine:
        raise UsageError(
            f"--log-file: {path!r} is relative, and the daemon on {connection.host} writes it",
            "give an absolute path on that machine",
        )
    try:
        return os.path.join(os.getcwd(), path)
    except FileNotFoundError:
        raise UsageError(
            f"--log-file: {path!r} is relative, and the current directory is gone",
            "give an absolute path",
        ) from None
