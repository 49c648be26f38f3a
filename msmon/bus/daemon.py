"""One daemon from start to stop: directory, keys, sockets, broker, signals.

What it serves is handed in; this module only puts the parts together in the right
order, keeps the local socket reachable, and takes everything down again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zmq

from msmon.bus import sockets
from msmon.bus.approvals import Approvals
from msmon.bus.authentication import AllowList, Authenticator
from msmon.bus.broker import Broker, DaemonFacts
from msmon.bus.keys import KeyPair, load_or_create_server_keys
from msmon.bus.outputs import OnCommit, Outputs
from msmon.bus.runtime import LocalAccess, RuntimeDirectory
from msmon.bus.timing import Timing
from msmon.errors import BusError

_log = logging.getLogger(__name__)

_SOCKET_CHECK_S = 1.0
_STOP_LIMIT_S = 4.8
"""Longer than the outputs' own limit, and below what service managers wait at least."""


@dataclass(frozen=True)
class DaemonSettings:
    """How one daemon is to run. ``listens`` are ``tcp://`` addresses."""

    runtime_directory: Path
    keys_directory: Path
    listens: tuple[str, ...] = ()
    insecure: bool = False
    access: LocalAccess = field(default_factory=LocalAccess)
    timing: Timing = field(default_factory=Timing)


async def serve(
    settings: DaemonSettings,
    outputs: Callable[[OnCommit], Outputs],
    ready: Callable[[str], None],
) -> None:
    """Run a daemon until SIGTERM or SIGINT; ``ready`` gets one line once all is up.

    Raises BusError when the directory, a key or a listener can't be had.
    """
    stop = _stop_event()
    _allow_many_connections()
    runtime = RuntimeDirectory(settings.runtime_directory, settings.access)
    runtime.claim()
    context: zmq.Context[Any] = zmq.Context()
    try:
        await _serve_in(settings, runtime, context, outputs, ready, stop)
    finally:
        context.destroy(linger=0)
        runtime.release()


async def _serve_in(
    settings: DaemonSettings,
    runtime: RuntimeDirectory,
    context: zmq.Context[Any],
    outputs: Callable[[OnCommit], Outputs],
    ready: Callable[[str], None],
    stop: asyncio.Event,
) -> None:
    keys = None if settings.insecure else load_or_create_server_keys(settings.keys_directory)
    allow_list = AllowList(settings.keys_directory)
    authenticator = Authenticator(
        context, allow_list, settings.access.any_others, settings.insecure
    )
    urls = (runtime.url, *settings.listens)
    with _closed_to_others():
        router = sockets.bind(context, keys, urls)
    facts = DaemonFacts(socket.gethostname(), os.getpid(), os.geteuid(), settings.insecure, urls)
    approvals = Approvals(settings.keys_directory)
    broker = Broker(router, authenticator, outputs, approvals, facts, settings.timing)
    try:
        broker.start()
        runtime.publish(keys.public if keys else None)
        ready(_ready_line(facts))
        await _until(stop, router, runtime, keys)
    finally:
        _log.info("stopping")
        await broker.close()


@contextlib.contextmanager
def _closed_to_others() -> Iterator[None]:
    """Create the socket so that nobody connects before it has its final mode."""
    former = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(former)


def _ready_line(facts: DaemonFacts) -> str:
    security = ", INSECURE" if facts.insecure else ""
    return f"msmon-daemon ready: pid {facts.pid}, {', '.join(facts.listens)}{security}"


def _allow_many_connections() -> None:
    """Raise the limit of open files as far as it goes: every agent is a connection."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _stop_event() -> asyncio.Event:
    """Return an event that SIGTERM and SIGINT set."""
    stop = asyncio.Event()

    def begin_stop() -> None:
        stop.set()
        limit = threading.Timer(_STOP_LIMIT_S, _give_up)
        limit.daemon = True
        limit.start()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, begin_stop)
    return stop


def _give_up() -> None:
    """End now: a thread hangs, say in a file system that does not answer."""
    _log.error("an output did not end in time; agents send again what was not acknowledged")
    os._exit(1)


async def _until(
    stop: asyncio.Event,
    router: zmq.Socket[Any],
    runtime: RuntimeDirectory,
    keys: KeyPair | None,
) -> None:
    """Wait for ``stop``; meanwhile bind again whenever the socket file has vanished."""
    bound = True
    while True:
        try:
            await asyncio.wait_for(stop.wait(), _SOCKET_CHECK_S)
            return
        except (asyncio.TimeoutError, TimeoutError):
            pass
        if bound and not runtime.socket_exists:
            _log.warning("%s has vanished; binding it again", runtime.socket)
            _unbind(router, runtime.url)  # removes the file once more, a little later
            bound = False
        elif not bound:
            bound = _bind_again(router, runtime, keys)


def _unbind(router: zmq.Socket[Any], url: str) -> None:
    try:
        router.unbind(url)
    except zmq.ZMQError as error:
        _log.warning("%s: %s", url, error)


def _bind_again(router: zmq.Socket[Any], runtime: RuntimeDirectory, keys: KeyPair | None) -> bool:
    try:
        runtime.claim_again()
        with _closed_to_others():
            router.bind(runtime.url)
        runtime.publish(keys.public if keys else None)
    except (BusError, zmq.ZMQError, OSError) as error:
        _log.error("can't listen on %s again: %s", runtime.url, error)
        return False
    return True
