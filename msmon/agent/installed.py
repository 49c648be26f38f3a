"""Whether the msmon that is installed is still the one that runs in this process.

A job runs for weeks, and msmon may be upgraded or removed meanwhile. What this process has loaded
goes on. What it has not loaded yet is gone, or belongs to another version that does not fit.
"""

from __future__ import annotations

import re
from pathlib import Path

import msmon
from msmon.errors import CommandRefused

RESTART = "restart the job to use what is installed"

_VERSION = re.compile(r'^__version__ = "([^"]+)"', re.MULTILINE)


def change() -> str:
    """Return what has become of the installed msmon; empty: it is the one that runs."""
    runs = f"msmon {msmon.__version__} runs in this job"
    try:
        text = Path(str(msmon.__file__)).read_text(encoding="utf-8")
    except FileNotFoundError:
        return f"{runs} and is not installed any more"
    except OSError:
        return ""
    version = _VERSION.search(text)
    if version is None or version[1] == msmon.__version__:
        return ""
    return f"{runs} and {version[1]} is installed"


def require_unchanged() -> None:
    """Raise CommandRefused where another version is installed. To be called before an import."""
    changed = change()
    if changed:
        raise CommandRefused(changed, RESTART)
