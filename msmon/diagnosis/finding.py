"""The result of a check: how bad it is, one line of text, and what to do about it."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Level(enum.Enum):
    """How bad a finding is. FAIL: monitoring can't work. WARN: it may explain a problem."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Finding:
    """The result of one check. ``details`` are further lines, for example one per process."""

    check: str
    level: Level
    text: str
    remedy: str = ""
    details: tuple[str, ...] = ()


def ok(check: str, text: str, *details: str) -> Finding:
    """Return a finding that needs no remedy."""
    return Finding(check, Level.OK, text, "", details)


def warn(check: str, text: str, remedy: str, *details: str) -> Finding:
    """Return a finding that may explain a problem."""
    return Finding(check, Level.WARN, text, remedy, details)


def fail(check: str, text: str, remedy: str, *details: str) -> Finding:
    """Return a finding that keeps monitoring from working."""
    return Finding(check, Level.FAIL, text, remedy, details)
