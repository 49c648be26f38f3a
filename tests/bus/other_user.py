"""Run as another user: ``python other_user.py UID PYTHON_EXPRESSION``; prints its value.

The expression sees ``endpoint()``, ``client()`` and the messages. Everything is imported
before the user changes, who may not be allowed to read the interpreter's files.
"""

import encodings.ascii  # noqa: F401 - needed after the user has changed
import os
import sys
import time  # noqa: F401 - for the expression

from msmon.bus import sockets
from msmon.bus.client import Client
from msmon.bus.codec import decode, encode
from msmon.bus.endpoints import local_endpoint
from msmon.bus.messages import *  # noqa: F403 - for the expression
from msmon.errors import MsmonError
from msmon.sessions import ProcessInfo


def endpoint():
    return local_endpoint(os.environ)


def ask(message):
    with Client(endpoint(), 5.0) as client:
        return client.request(message)


def exchange(message):
    """Send one message on a new connection; return the daemon's answer."""
    import zmq

    dealer, _ = sockets.connect(zmq.Context(), endpoint())
    dealer.send_multipart(encode(message, "1"))
    return decode(dealer.recv_multipart()).message


def hello(pid):
    return exchange(Hello("0", "agent", ProcessInfo("node", pid, 1)))  # noqa: F405


os.setgroups([])
os.setgid(int(sys.argv[1]))
os.setuid(int(sys.argv[1]))
try:
    print(eval(sys.argv[2]))
except MsmonError as error:
    print(f"{type(error).__name__}: {error}")
sys.stdout.flush()
os._exit(0)
