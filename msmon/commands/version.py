"""``msmon version``: the version and protocol of both sides."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import click

import msmon
from msmon.bus.messages import PROTOCOL_MAJOR, PROTOCOL_MINOR, VersionRequest
from msmon.commands.answers import terminal_safe
from msmon.commands.connection import Connection, daemon_options
from msmon.commands.many_daemons import daemons
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
        click.echo(json.dumps({"client": client, "daemon": reply.daemon}))
        return
    for daemon in daemons(reply):
        _show(daemon)
    if reply.text:
        raise BusError(reply.text)


def _show(daemon: Mapping[str, Any]) -> None:
    protocol = f" (protocol {terminal_safe(daemon['protocol'])})" if daemon.get("protocol") else ""
    place = f"{terminal_safe(daemon.get('host', '?'))}, pid {daemon.get('pid', '?')}"
    click.echo(f"daemon  {terminal_safe(daemon.get('version', '?'))}{protocol} on {place}")
