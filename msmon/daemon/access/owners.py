"""Whose data it is: the key of everything that is counted or kept per user."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Owner:
    """A user of this machine ("uid 1000"), or the holder of a TCP key ("key NAME", uid -1)."""

    name: str
    uid: int = -1


def owner_directory(state_directory: Path, owner: str) -> Path:
    """Return where the daemon keeps what it must know of an owner over a restart."""
    readable = re.sub(r"[^A-Za-z0-9]+", "-", owner)[:40]
    digest = hashlib.sha256(owner.encode("utf-8", "backslashreplace")).hexdigest()[:16]
    return state_directory / "owners" / f"{readable}-{digest}"


def make_owner_directory(directory: Path) -> None:
    """Make an owner's directory, readable by the daemon only. Raises OSError."""
    directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory.mkdir(mode=0o700, exist_ok=True)
