"""Loads libmspti.so as a job would, in a process that may be lost: ``python -m`` this module.

Prints one line of JSON: ``origin`` when it worked, else ``error`` and ``next_step``. Where
the library aborts, the caller sees the signal.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from msmon.errors import MsmonError
from msmon.recording.library import load


def probe() -> dict[str, Any]:
    """Load the library and subscribe once: that is where it wants the driver's library."""
    try:
        mspti = load(os.environ)
        mspti.unsubscribe(mspti.subscribe())
    except MsmonError as error:
        return {"error": error.message, "next_step": error.next_step}
    return {"origin": mspti.origin}


if __name__ == "__main__":
    print(json.dumps(probe()), flush=True)
    sys.stdout.flush()
    os._exit(0)  # the library's destructor may wait for threads of its own
