"""Whose data it is: the key of everything that is counted or kept per user."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from pathlib import Path

from msmon.bus.places import require_guarded


@dataclass(frozen=True)
class Owner:
    """A user of this machine ("uid 1000"), or the holder of a TCP key ("key NAME", uid -1)."""

    name: str
    uid: int = -1
    gid: int = field(default=-1, compare=False)
    """Group of the process that was seen first, by the kernel's word; -1: not known."""


def owner_directory(state_directory: Path, owner: str) -> Path:
    """Return where the daemon keeps what it must know of an owner over a restart."""
    readable = re.sub(r"[^A-Za-z0-9]+", "-", owner)[:40]
    digest = hashlib.sha256(owner.encode("utf-8", "backslashreplace")).hexdigest()[:16]
    return state_directory / "owners" / f"{readable}-{digest}"


def make_owner_directory(directory: Path) -> None:
    """Make an owner's directory, readable by the daemon only.

    Raises OSError, and Unguarded where somebody else has put something in its place.
    """
    require_guarded(directory, make=True)


def require_guarded_owners(state_directory: Path) -> None:
    """Raise Unguarded or OSError unless nobody else can change what is kept of owners.

    A state directory may have been open to others once: what they have put there stays.
    """
    owners = state_directory / "owners"
    require_guarded(owners)
    if owners.exists():
        for directory in owners.iterdir():
            require_guarded(directory)
