"""``msmon version``: the version and protocol of both sides."""

from __future__ import annotations

import json

import click

import msmon
from msmon.bus.codec import plain
from msmon.bus.messages import PROTOCOL_MAJOR, PROTOCOL_MINOR, VersionRequest
from msmon.bus.rows import DaemonRow
from msmon.commands.asking.answers import daemon_fields, daemons, terminal_safe
from msmon.commands.asking.connection import Connection, daemon_options
from msmon.errors import BusError

PROTOCOL = f"{PROTOCOL_MAJOR}.{PROTOCOL_MINOR}"


@click.command()
@daemon_options
def version(connection: Connection) -> None:
    """Show the version of this command and of the daemon.

    \b
    Also of a daemon elsewhere:
      msmon version --host node7
    """
    client = {"version": msmon.__version__, "protocol": PROTOCOL}
    if not connection.json:
        click.echo(f"msmon   {client['version']} (protocol {client['protocol']})")
    reply = connection.request(VersionRequest())
    if connection.json:
        click.echo(json.dumps({"client": client, "daemon": daemon_fields(reply)}, default=plain))
        return
    for daemon in daemons(reply):
        _show(daemon)
    if reply.text:
        raise BusError(reply.text)


def _show(daemon: DaemonRow) -> None:
    protocol = f" (protocol {terminal_safe(daemon.protocol)})" if daemon.protocol else ""
    place = f"{terminal_safe(daemon.host)}, pid {daemon.pid}"
    click.echo(f"daemon  {terminal_safe(daemon.version)}{protocol} on {place}")
