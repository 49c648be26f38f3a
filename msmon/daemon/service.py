"""One daemon from start to stop: directory, keys, sockets, broker, signals.

This module makes the parts in the right order, connects them, makes the local socket again if
its file vanishes, and closes everything at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zmq

from msmon.bus import sockets
from msmon.bus.keys import KeyPair, load_credential, load_or_create_server_keys
from msmon.bus.places import require_guarded
from msmon.daemon.access.allow_list import AllowList
from msmon.daemon.access.approvals import Approvals
from msmon.daemon.access.audit import AuditLog
from msmon.daemon.access.authentication import Authenticator
from msmon.daemon.access.descriptors import connection_budget, is_safe, raise_limit
from msmon.daemon.access.owners import require_guarded_owners
from msmon.daemon.access.routing_ids import make_routing_ids_unpredictable
from msmon.daemon.access.shares import Resource, Shares
from msmon.daemon.broker import Broker
from msmon.daemon.commands.questions import DaemonFacts
from msmon.daemon.notify import ServiceManager
from msmon.daemon.outputs.outputs import OnCommit, Outputs
from msmon.daemon.recent.recent_windows import RecentLimits, RecentWindows
from msmon.daemon.runtime import LocalAccess, RuntimeDirectory
from msmon.daemon.standing.orders import OrderFromFile, Orders
from msmon.daemon.standing.store import OrderStore
from msmon.daemon.timing import Timing
from msmon.errors import BusError, MsmonError

_log = logging.getLogger(__name__)

_SOCKET_CHECK_S = 1.0
_LINGER_MS = 200
_STOP_LIMIT_S = 4.8
"""A stop that takes longer ends the process. Outputs have a shorter limit of their own, and
service managers wait longer before they kill the daemon."""


@dataclass(frozen=True)
class DaemonSettings:
    """How one daemon is to run. ``listens`` are ``tcp://`` addresses."""

    runtime_directory: Path
    keys_directory: Path
    state_directory: Path
    listens: tuple[str, ...] = ()
    insecure: bool = False
    access: LocalAccess = field(default_factory=LocalAccess)
    timing: Timing = field(default_factory=Timing)
    recent: RecentLimits = field(default_factory=RecentLimits)
    order: OrderFromFile = field(default_factory=OrderFromFile)
    credential: Path | None = None
    """Key file of the server from the service manager; None: the one in ``keys_directory``."""


@dataclass(frozen=True)
class Surface:
    """What the caller of :func:`serve` adds to the daemon."""

    ready: Callable[[str], None]
    """Called with one line of text when the daemon serves."""
    reload: Callable[[], None] = lambda: None
    """Reads the configuration again at SIGHUP. May raise MsmonError."""
    manager: ServiceManager = field(default_factory=lambda: ServiceManager({}))


async def serve(
    settings: DaemonSettings, outputs: Callable[[OnCommit], Outputs], surface: Surface
) -> None:
    """Run a daemon until SIGTERM or SIGINT. SIGHUP reads allow-list and configuration again.

    Raises BusError if the runtime directory, a key or a TCP address can't be used, or if others
    could change a directory of the daemon (Unguarded).
    """
    stop = _stop_event(surface.manager)
    budget = _connection_budget()
    _require_guarded(settings)
    runtime = RuntimeDirectory(settings.runtime_directory, settings.access)
    runtime.claim()
    context: zmq.Context[Any] = zmq.Context()
    try:
        await _serve_in(settings, runtime, context, outputs, surface, stop, budget)
    finally:
        context.destroy(linger=_LINGER_MS)  # Time to send the last acknowledgements.
        runtime.release()


async def _serve_in(
    settings: DaemonSettings,
    runtime: RuntimeDirectory,
    context: zmq.Context[Any],
    outputs: Callable[[OnCommit], Outputs],
    surface: Surface,
    stop: asyncio.Event,
    budget: int,
) -> None:
    keys = _server_keys(settings)
    allow_list = AllowList(settings.keys_directory)
    authenticator = Authenticator(
        context, allow_list, settings.access.any_others, settings.insecure
    )
    urls = (runtime.url, *settings.listens)
    make_routing_ids_unpredictable()
    with _closed_to_others():
        router = sockets.bind(context, keys, urls)
    facts = DaemonFacts(socket.gethostname(), os.getpid(), os.geteuid(), settings.insecure, urls)
    approvals = Approvals(settings.state_directory)
    amounts = {Resource.RECENT_BYTES: float(settings.recent.share_bytes)}
    shares = Shares(authenticator.is_operator, amounts=amounts)
    recent = RecentWindows(shares, settings.recent)
    store = OrderStore(settings.state_directory)
    orders = Orders(
        store.load(),
        settings.order,
        lambda owner: settings.insecure or authenticator.is_operator(owner),
        lambda: allow_list.changes,
    )
    audit = AuditLog(settings.state_directory, shares)
    broker = Broker(
        router,
        authenticator,
        outputs,
        approvals,
        audit,
        facts,
        settings.timing,
        shares,
        budget,
        recent,
        orders,
        store,
    )
    try:
        broker.start()
        runtime.publish(keys.public if keys else None)
        line = _ready_line(facts)
        _reload_on_hangup(allow_list, surface, line)
        surface.ready(line)
        surface.manager.ready(line)
        await _until(stop, router, runtime, keys, surface.manager)
    finally:
        _log.info("stopping")
        await broker.close()


def _require_guarded(settings: DaemonSettings) -> None:
    """Raise BusError where others could change the daemon's keys or what it keeps."""
    try:
        require_guarded(settings.keys_directory)
        require_guarded(settings.state_directory)
        require_guarded_owners(settings.state_directory)
    except OSError as error:
        raise BusError(f"can't use {error.filename}: {error.strerror}") from None


def _server_keys(settings: DaemonSettings) -> KeyPair | None:
    if settings.insecure:
        return None
    if settings.credential is not None:
        return load_credential(settings.credential)
    return load_or_create_server_keys(settings.keys_directory)


def _reload_on_hangup(allow_list: AllowList, surface: Surface, line: str) -> None:
    """Make SIGHUP read configuration and allow-list again. An error leaves the old ones."""

    def reload() -> None:
        surface.manager.reloading()
        try:
            surface.reload()
            allow_list.refresh()
            _log.info("allow-list and configuration read again")
        except MsmonError as error:
            _log.error("the configuration stays as it was: %s", error)
        surface.manager.ready(line)

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload)


@contextlib.contextmanager
def _closed_to_others() -> Iterator[None]:
    """Make new files accessible only to their owner.

    So nobody can connect to the socket before :meth:`RuntimeDirectory.publish` sets its mode.
    """
    former = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(former)


def _ready_line(facts: DaemonFacts) -> str:
    security = ", INSECURE" if facts.insecure else ""
    return f"msmon-daemon ready: pid {facts.pid}, {', '.join(facts.listens)}{security}"


def _connection_budget() -> int:
    """Raise the limit of open files, and return how many connections it allows."""
    limit = raise_limit()
    if not is_safe(limit):
        _log.warning(
            "the limit of open files is %d: whoever opens connections fast enough can end this "
            "daemon; set LimitNOFILE (ulimit -Hn) to 65536",
            limit,
        )
    return connection_budget(limit)


def _stop_event(manager: ServiceManager) -> asyncio.Event:
    """Return an event that SIGTERM and SIGINT set."""
    stop = asyncio.Event()

    def begin_stop() -> None:
        if not stop.is_set():
            manager.stopping()
        stop.set()
        limit = threading.Timer(_STOP_LIMIT_S, _give_up)
        limit.daemon = True
        limit.start()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, begin_stop)
    return stop


def _give_up() -> None:
    """End the process at once: a thread hangs, for example in a dead network file system."""
    _log.error("an output did not end in time; agents send again what was not acknowledged")
    os._exit(1)


async def _until(
    stop: asyncio.Event,
    router: zmq.Socket[Any],
    runtime: RuntimeDirectory,
    keys: KeyPair | None,
    manager: ServiceManager,
) -> None:
    """Wait for ``stop``, and meanwhile make the local socket again whenever its file vanishes."""
    bound = True
    while True:
        manager.beat()
        try:
            await asyncio.wait_for(stop.wait(), _SOCKET_CHECK_S)
            return
        except (asyncio.TimeoutError, TimeoutError):
            pass
        if bound and not runtime.socket_exists:
            _log.warning("%s has vanished; binding it again", runtime.socket)
            # libzmq removes the file a little after this call, so the next round binds.
            _unbind(router, runtime.url)
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
