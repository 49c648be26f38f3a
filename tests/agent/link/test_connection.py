"""A connection to the daemon ends once, whatever libzmq does about it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import zmq

from msmon.agent.link.connection import Connection, ConnectionLost
from msmon.agent.link.notices import Notices
from msmon.bus.endpoints import Endpoint
from msmon.bus.messages import Goodbye

LIMIT_MS = 10_000


@pytest.fixture
def context() -> Iterator[zmq.Context]:
    made = zmq.Context()
    yield made
    made.destroy(linger=0)


def test_nothing_goes_over_the_connection_that_libzmq_makes_in_its_place(context, tmp_path):
    url = f"ipc://{tmp_path}/daemon.sock"
    first = context.socket(zmq.ROUTER)
    first.bind(url)
    notices = Notices()
    with Connection(context, Endpoint(url, None, None), notices) as connection:
        connection.wait_connected(10.0, lambda: False)
        first.close(0)
        second = context.socket(zmq.ROUTER)
        monitor = second.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        second.bind(url)
        assert monitor.poll(LIMIT_MS), "libzmq has connected again"
        with pytest.raises(ConnectionLost):
            connection.send(Goodbye("exit"))
        assert not second.poll(100)
    second.disable_monitor()
    monitor.close(0)
    second.close(0)
    notices.close()
