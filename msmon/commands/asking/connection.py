"""The options that say which daemon a command asks, and the request that it sends there."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import click

from msmon.bus.client import Client
from msmon.bus.endpoints import DEFAULT_PORT, Endpoint, local_endpoint, remote_endpoint
from msmon.bus.keys import keys_directory
from msmon.bus.messages import Message, Reply
from msmon.commands.asking.many_daemons import ask_all
from msmon.commands.asking.parameters import option_from
from msmon.errors import UsageError
from msmon.settings.options import Option, real_number, text_up_to, whole_number

Result = TypeVar("Result")

LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
REPLY_MARGIN_S = 2.0
"""The daemon waits ``--timeout`` for the processes, the command this much longer for the daemon."""


MAX_HOSTS = 256


def _host_names(value: Any) -> str:
    hosts = text_up_to(MAX_HOSTS * 254)(value).split(",")
    for host in hosts:
        text_up_to(253)(host)
        if not host or any(character.isspace() or character == "/" for character in host):
            raise ValueError(value)
    return ",".join(dict.fromkeys(hosts))


HOST = Option(
    "host",
    "--host",
    "Machine of the daemon; several, separated by commas, are asked at once.",
    _host_names,
    metavar="HOST[,HOST...]",
)
PORT = Option(
    "port",
    "--port",
    f"TCP port of the daemon (default with --host: {DEFAULT_PORT}).",
    whole_number,
    minimum=1,
    maximum=65535,
    metavar="PORT",
)
TIMEOUT = Option(
    "timeout_s",
    "--timeout",
    "Seconds to wait for the answer.",
    real_number,
    default=10.0,
    minimum=0.1,
    maximum=3600,
    metavar="SECONDS",
)


@dataclass(frozen=True)
class Connection:
    """Where the daemon is and how long to wait for it.

    ``host`` may name several, separated by commas; empty: the local socket.
    """

    host: str = ""
    port: int = DEFAULT_PORT
    keys: Path | None = None
    timeout_s: float = 10.0
    insecure: bool = False
    json: bool = False
    quiet: bool = False
    """Says nothing of sockets that were passed over: something else is on the screen."""

    @property
    def same_machine(self) -> bool:
        """Whether the daemon sees the same files as this command."""
        return not self.host or LOOPBACK_HOSTS.issuperset(self.host.split(","))

    def endpoint(self) -> Endpoint:
        """Return the endpoint to connect to. Raises BusError when its keys are missing."""
        if not self.host:
            local = local_endpoint(os.environ, self.insecure)
            for place in () if self.quiet else local.passed_over:
                click.echo(f"msmon: passed over: {place}", err=True)
            return local
        keys = self.keys or keys_directory(os.environ)
        return remote_endpoint(self.host, self.port, keys, self.insecure)

    @property
    def each(self) -> dict[str, Connection]:
        """Name of each daemon → the connection to it alone; the one of this machine has none."""
        return {host: replace(self, host=host) for host in self.host.split(",")}

    def request(self, message: Message) -> Reply:
        """Send one request and return its reply. Raises BusError or CommandRefused."""
        hosts = self.host.split(",")
        if len(hosts) > 1:
            return ask_all(hosts, lambda host: replace(self, host=host).request(message))
        with Client(self.endpoint(), self.timeout_s) as client:
            reply: Reply = client.request(message, self.timeout_s + REPLY_MARGIN_S)
            return reply


def daemon_options(command: Callable[..., Result]) -> Callable[..., Result]:
    """Add the options of a command that talks to a daemon; it gets a ``connection``."""

    @option_from(HOST)
    @option_from(PORT)
    @click.option(
        "--keys",
        type=click.Path(path_type=Path),
        metavar="DIRECTORY",
        help="Directory of the keys for --host.",
    )
    @option_from(TIMEOUT)
    @click.option(
        "--insecure", is_flag=True, help="Use no encryption; the daemon must say --insecure too."
    )
    @click.option(
        "--json",
        "as_json",
        is_flag=True,
        help="Answer in JSON.",
    )
    @functools.wraps(command)
    def connecting(
        *args: Any,
        host: str | None,
        port: int | None,
        keys: Path | None,
        timeout_s: float | None,
        insecure: bool,
        as_json: bool,
        **rest: Any,
    ) -> Result:
        remote = bool(host or port)
        if keys is not None and not remote:
            raise UsageError("--keys is for a remote daemon", "give --host too")
        connection = Connection(
            host=host or ("localhost" if remote else ""),
            port=port or DEFAULT_PORT,
            keys=keys,
            timeout_s=TIMEOUT.default if timeout_s is None else timeout_s,
            insecure=insecure,
            json=as_json,
        )
        return command(*args, connection=connection, **rest)

    return connecting
