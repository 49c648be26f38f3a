"""What ``--json`` prints where a command ends by an error: the same keys as an answer has.

A script may therefore go over ``.rows[]`` before it looks at ``.outcome``.
"""

from __future__ import annotations

import json

from msmon.errors import MsmonError


def error_as_json(error: MsmonError) -> str:
    """Return one line of JSON.

    ``outcome`` is "error", ``error`` the class of the exception (see ``msmon/errors.py``),
    ``text`` and ``next_step`` are its sentences. ``rows`` and ``daemon`` are empty.
    """
    return json.dumps(
        {
            "outcome": "error",
            "error": type(error).__name__,
            "text": error.message,
            "next_step": error.next_step,
            "rows": [],
            "daemon": {},
        }
    )
