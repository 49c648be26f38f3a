"""The daemon's end of the wire answers, whatever goes wrong."""

from __future__ import annotations

import asyncio

import pytest
import zmq

from msmon.bus.codec import decode
from msmon.bus.messages import Message, Refused, Reply
from msmon.bus.rows import DaemonRow
from msmon.daemon.transport import Transport


def answered(message: Message) -> tuple[Message, int]:
    """Return what a peer gets when the daemon sends ``message``, and the counted failures."""

    async def send() -> tuple[Message, int]:
        with (
            zmq.Context() as context,
            context.socket(zmq.ROUTER) as router,
            context.socket(zmq.DEALER) as peer,
        ):
            router.bind("inproc://transport")
            peer.connect("inproc://transport")
            peer.send(b"hello")
            transport = Transport(router, lambda frames: False)
            assert transport.send(router.recv_multipart()[0], message, "7")
            transport.close()
            envelope = decode(peer.recv_multipart())
            assert envelope.message_id == "7"
            return envelope.message, transport.failures

    return asyncio.run(send())


@pytest.mark.parametrize("value", [2**64, object()], ids=["too large", "no value"])
def test_an_answer_that_can_not_be_encoded_becomes_a_refusal_and_is_counted(value):
    message, failures = answered(Reply("ok", daemon=DaemonRow("1", pid=value)))
    assert isinstance(message, Refused)
    assert failures == 1
