"""``msmon keys``: who may reach a daemon over the network, and this machine's own keys.

Works on files; a running daemon notices a changed allow-list by itself. No secret is
ever shown.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from msmon.bus.keys import (
    CLIENT_PUBLIC_FILE,
    CLIENTS_DIRECTORY,
    SERVER_PUBLIC_FILE,
    SERVERS_DIRECTORY,
    keys_directory,
)
from msmon.commands.asking.answers import terminal_safe
from msmon.daemon.access.allow_list import AllowedKey, fingerprint
from msmon.daemon.access.key_store import KeyStore
from msmon.daemon.access.roles import KEY_ROLES, Role
from msmon.errors import BusError

ROLE_NAMES = [role.value for role in KEY_ROLES]

pass_store = click.make_pass_decorator(KeyStore)


def _role_option(required: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option(
        "--role",
        type=click.Choice(ROLE_NAMES),
        required=required,
        help="agent: register ranks. viewer: ask. operator: command.",
    )


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--keys",
    "directory",
    type=click.Path(path_type=Path),
    metavar="DIRECTORY",
    help="Directory of the keys [default: MSMON_KEYS_DIR, or /etc/msmon/keys for root, "
    "else ~/.config/msmon/keys].",
)
@click.pass_context
def keys(ctx: click.Context, directory: Path | None) -> None:
    """Manage the keys of daemons that listen on the network. Local use needs none.

    \b
    Where the daemon runs, make a key for somebody and hand over the directory:
      msmon keys new olga --role operator
    Or allow a key that was made elsewhere with `msmon keys init`:
      msmon keys allow olga.key --role operator
    """
    ctx.obj = KeyStore(directory or keys_directory(os.environ))


@keys.command()
@click.option("--daemon", "for_daemon", is_flag=True, help="The daemon's pair, not your own.")
@pass_store
def init(store: KeyStore, for_daemon: bool) -> None:
    """Make a key pair here, unless there is one: your own, or the daemon's.

    The daemon makes its own pair at its first start.
    """
    public = store.make_server_pair() if for_daemon else store.make_client_pair()
    _show_own(store)
    if for_daemon:
        _next(f"clients need {public} as {SERVERS_DIRECTORY}/HOST.key in their key directory")
    else:
        _next(f"give {public} to the daemon's operator: msmon keys allow FILE --role ROLE --name …")
        _next(f"put the daemon's {SERVER_PUBLIC_FILE} at {_server_file(store)}")


@keys.command()
@click.argument("name")
@_role_option(required=True)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIRECTORY",
    help="Directory to make for the client [default: msmon-keys-NAME].",
)
@pass_store
def new(store: KeyStore, name: str, role: str, out: Path | None) -> None:
    """Make a key pair for NAME, allow it, and put all that NAME needs into a directory."""
    directory = out or Path(f"msmon-keys-{name}")
    _show_entry(store.make_client(name, Role(role), directory))
    _next(f"move {directory} to the client's machine as ~/.config/msmon/keys, or use it with")
    _next(f"  msmon status --host HOST --keys {directory}")


@keys.command()
@click.option("--json", "as_json", is_flag=True, help="Answer in JSON.")
@pass_store
def show(store: KeyStore, as_json: bool) -> None:
    """Show the fingerprints of the daemon's key, your own, and those of known daemons."""
    if as_json:
        rows = [
            {"use": key.use, "path": str(key.path), "fingerprint": fingerprint(key.public)}
            for key in store.own_keys()
        ]
        click.echo(json.dumps({"directory": str(store.directory), "keys": rows}))
    else:
        _show_own(store)


@keys.command("list")
@click.option("--json", "as_json", is_flag=True, help="Answer in JSON.")
@pass_store
def list_allowed(store: KeyStore, as_json: bool) -> int:
    """List the keys that the daemon takes connections from; 1 if a file there is broken."""
    entries, problems = store.allowed()
    if as_json:
        rows = [
            {"name": key.name, "role": key.role.value, "fingerprint": fingerprint(key.public)}
            for key in entries
        ]
        broken = [{"text": error.message, "next_step": error.next_step} for error in problems]
        click.echo(json.dumps({"keys": rows, "problems": broken}))
        return 1 if problems else 0
    for entry in entries:
        _show_entry(entry)
    if not entries and not problems:
        click.echo(f"no key is allowed by {store.directory / CLIENTS_DIRECTORY}")
    for error in problems:
        _warn(error)
    return 1 if problems else 0


@keys.command()
@click.argument("file", type=click.Path(path_type=Path))
@_role_option(required=False)
@click.option("--name", help="Name of the key [default: that of FILE].")
@pass_store
def allow(store: KeyStore, file: Path, role: str | None, name: str | None) -> None:
    """Put the public key in FILE on the allow-list, or change its role. In force at once."""
    called = file.stem if name is None else name
    _show_entry(store.allow(file, Role(role) if role else None, called))


@keys.command()
@click.argument("name")
@pass_store
def revoke(store: KeyStore, name: str) -> None:
    """Take a key off the allow-list; its open connections are closed within seconds."""
    entry = store.revoke(name)
    click.echo(f"revoked {name}{f'  {fingerprint(entry.public)}' if entry else ''}")


@keys.command()
@click.option("--own", is_flag=True, help="Your own pair, not the daemon's.")
@pass_store
def rotate(store: KeyStore, own: bool) -> None:
    """Replace the daemon's pair, or your own, by a new one."""
    public = store.rotate_client() if own else store.rotate_server()
    click.echo(f"new {'client' if own else 'daemon'} key  {fingerprint(public)}")
    if own:
        path = store.directory / CLIENT_PUBLIC_FILE
        _next(f"the old key stays allowed until it is revoked; then have {path} allowed")
        return
    names = ", ".join(entry.name for entry in store.allowed()[0])
    _next("restart msmon-daemon: until then it goes on with the old key")
    if names:
        _next(f"give {store.directory / SERVER_PUBLIC_FILE} to: {names}")


def _server_file(store: KeyStore) -> Path:
    return store.directory / SERVERS_DIRECTORY / "HOST.key"


def _show_own(store: KeyStore) -> None:
    found = store.own_keys()
    for key in found:
        click.echo(f"{key.use:<10} {fingerprint(key.public)}  {key.path}")
    if not found:
        click.echo(f"no keys in {store.directory}")
        _next("run: msmon keys init")


def _show_entry(entry: AllowedKey) -> None:
    name = terminal_safe(entry.name)
    click.echo(f"{name:<20} {entry.role.value:<9} {fingerprint(entry.public)}")


def _next(text: str) -> None:
    click.echo(f"  {text}")


def _warn(error: BusError) -> None:
    click.echo(f"msmon: not allowed: {error.message}", err=True)
    if error.next_step:
        click.echo(f"  {error.next_step}", err=True)
