"""Loads libmspti.so as a job would: ``python -m msmon.diagnosis.mspti_probe``.

It runs in a child process, because the library can abort its process; the parent then sees
the signal. Prints one line of JSON: ``origin`` if it worked, else ``error`` and ``next_step``.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from msmon.errors import MsmonError
from msmon.recording.loading import load


def probe() -> dict[str, Any]:
    """Load the library and subscribe once. Only subscribing loads the driver's library too."""
    try:
        mspti = load(os.environ)
        mspti.unsubscribe(mspti.subscribe())
    except MsmonError as error:
        return {"error": error.message, "next_step": error.next_step}
    return {"origin": mspti.origin}


if __name__ == "__main__":
    print(json.dumps(probe()), flush=True)
    sys.stdout.flush()
    os._exit(0)  # A normal exit runs the library's destructor, which can wait for ever.
