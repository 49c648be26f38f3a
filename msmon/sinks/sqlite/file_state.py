"""What the progress of a session holds: which file it is written to."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from msmon.errors import SinkError
from msmon.sinks.base import Progress
from msmon.sinks.exports import FileIdentity


@dataclass(frozen=True)
class FileState:
    """Which file a session is written to, as its progress holds it."""

    path: Path
    identity: FileIdentity

    @classmethod
    def of(cls, progress: Progress) -> FileState | None:
        """Return what the progress holds; None for a new session. Raises SinkError if damaged."""
        if not progress.value:
            return None
        try:
            fields = json.loads(progress.value)
            identity = FileIdentity(int(fields["device"]), int(fields["inode"]))
            return cls(Path(fields["path"]), identity)
        except (ValueError, TypeError, KeyError) as error:
            raise SinkError(f"the progress of a session is damaged: {error}") from error

    def to_json(self) -> bytes:
        """Return the text to keep."""
        return json.dumps({"path": str(self.path), **self.identity._asdict()}).encode()
