"""Run as ``python victim.py UID``: the rank of a user, which trains until SIGTERM.

It begins when its standard input ends.
"""

from __future__ import annotations

import signal
import sys
import time

from attacks.as_user import become

ITERATION_S = 0.01

if __name__ == "__main__":
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: ended.append(1))
    import msmon

    become(int(sys.argv[1]))
    sys.stdin.read()
    msmon.init()
    while not ended:
        time.sleep(ITERATION_S)
        msmon.step()
    msmon.shutdown()
