"""Key files: how they are made, and what is said about broken ones."""

from __future__ import annotations

import os
import stat

import pytest

from msmon.bus.keys import (
    KeyPair,
    key_file_text,
    load_key_pair,
    load_or_create_server_keys,
    load_public_key,
)
from msmon.errors import BusError


def mode(path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_first_start_makes_keys_that_only_the_owner_reads(tmp_path):
    former = os.umask(0)
    try:
        pair = load_or_create_server_keys(tmp_path / "new" / "keys")
    finally:
        os.umask(former)
    assert mode(tmp_path / "new" / "keys") == 0o700
    assert mode(tmp_path / "new" / "keys" / "server.key_secret") == 0o600
    assert load_public_key(tmp_path / "new" / "keys" / "server.key") == pair.public


def test_later_starts_use_the_same_keys(tmp_path):
    directory = tmp_path / "keys"
    first = load_or_create_server_keys(directory)
    (directory / "server.key").unlink()
    assert load_or_create_server_keys(directory) == first
    assert sorted(path.name for path in directory.iterdir()) == ["server.key", "server.key_secret"]


def test_a_secret_is_never_shown():
    pair = KeyPair.generate()
    assert pair.secret.decode() not in repr(pair)


@pytest.mark.parametrize("name", [".", "server.key_secret"])
def test_files_open_to_others_are_refused_with_the_chmod_to_run(tmp_path, name):
    directory = tmp_path / "keys"
    load_or_create_server_keys(directory)
    (directory / name).chmod(0o755 if name == "." else 0o640)
    with pytest.raises(BusError, match="open to other users") as caught:
        load_or_create_server_keys(directory)
    assert "chmod" in caught.value.next_step


def test_file_errors_differ(tmp_path):
    whole = key_file_text({"public-key": KeyPair.generate().public.decode()})
    contents = {
        "empty": "",
        "truncated": whole[:20],
        "short": whole.replace('"\n', "")[:-1] + '"\n',
        "odd": key_file_text({"public-key": "~" * 40}),
        "binary": "\x80",
        "nameless": 'role = "agent"\n',
    }
    seen = set()
    for name, text in contents.items():
        path = tmp_path / name
        path.write_text(text, "latin-1")
        with pytest.raises(BusError) as caught:
            load_public_key(path)
        seen.add(caught.value.message.replace(str(path), ""))
    with pytest.raises(BusError) as caught:
        load_public_key(tmp_path / "missing")
    assert len(seen | {caught.value.message}) >= 6
    with pytest.raises(BusError, match="39 characters"):
        load_public_key(tmp_path / "short")


def test_a_public_file_is_no_key_pair(tmp_path):
    path = tmp_path / "client.key_secret"
    path.write_text(key_file_text({"public-key": KeyPair.generate().public.decode()}))
    path.chmod(0o600)
    with pytest.raises(BusError, match="no secret-key"):
        load_key_pair(path)
