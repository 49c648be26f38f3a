"""``msmon keys``: files that a daemon and its clients can use, and never a secret on show."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from msmon.bus.endpoints import remote_endpoint
from msmon.bus.keys import KeyPair, key_file_text, load_key_pair, load_public_key
from msmon.commands.main import main
from msmon.daemon.access.allow_list import AllowList, fingerprint
from msmon.daemon.access.roles import Role


class Keys:
    """Runs ``msmon keys`` on one directory."""

    def __init__(self, directory: Path, capsys) -> None:
        self.directory = directory
        self._capsys = capsys

    def __call__(self, *arguments: str, code: int = 0) -> str:
        """Run a command that is to end with ``code``; return all it printed."""
        assert main(["keys", "--keys", str(self.directory), *arguments]) == code
        shown = self._capsys.readouterr()
        for secret in self.directory.glob("**/*_secret"):
            assert load_key_pair(secret).secret.decode() not in shown.out + shown.err
        return shown.out + shown.err

    def role_of(self, public: bytes) -> Role | None:
        allow_list = AllowList(self.directory)
        allow_list.refresh()
        entry = allow_list.get(public.decode())
        return entry.role if entry else None


@pytest.fixture
def keys(tmp_path, capsys) -> Keys:
    return Keys(tmp_path / "keys", capsys)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_init_makes_the_own_pair_once(keys):
    assert "servers/HOST.key" in keys("init")
    pair = load_key_pair(keys.directory / "client.key_secret")
    assert mode(keys.directory) == 0o700
    assert mode(keys.directory / "client.key_secret") == 0o600
    assert fingerprint(pair.public.decode()) in keys("init")
    assert load_public_key(keys.directory / "client.key") == pair.public


def test_new_makes_a_directory_that_a_client_can_use(keys, tmp_path):
    bundle = tmp_path / "for-olga"
    assert "olga" in keys("new", "olga", "--role", "operator", "--out", str(bundle))
    endpoint = remote_endpoint("node7", 1778, bundle)
    assert keys.role_of(endpoint.client_keys.public) is Role.OPERATOR
    assert endpoint.server_public_key == load_public_key(keys.directory / "server.key")
    assert mode(bundle) == 0o700
    assert mode(bundle / "client.key_secret") == 0o600
    again = keys("new", "olga", "--role", "agent", "--out", str(tmp_path / "b"), code=2)
    assert "already allowed as olga" in again


def test_a_key_made_elsewhere_is_allowed_changed_and_revoked(keys, tmp_path):
    public = KeyPair.generate().public
    file = tmp_path / "vera.key"
    file.write_text(key_file_text({"public-key": public.decode()}))
    file.chmod(0o664)
    keys("allow", str(file))
    assert keys.role_of(public) is Role.AGENT
    keys("allow", str(file), "--role", "viewer")
    assert keys.role_of(public) is Role.VIEWER
    assert "as vera" in keys("allow", str(file), "--name", "v2", code=2)
    assert fingerprint(public.decode()) in keys("revoke", "vera")
    assert keys.role_of(public) is None
    assert "no key vera" in keys("revoke", "vera", code=2)


def test_a_secret_file_is_not_allowed_and_no_name_leaves_the_directory(keys):
    keys("init")
    secret = str(keys.directory / "client.key_secret")
    assert "holds a secret" in keys("allow", secret, "--name", "me", code=2)
    public = str(keys.directory / "client.key")
    for name in ("../me", "a/b", "", ".hidden", "x" * 65):
        assert "can't be the name" in keys("allow", public, "--name", name, code=2)


def test_list_names_broken_files_and_open_ones_with_the_chmod(keys):
    keys("init")
    keys("allow", str(keys.directory / "client.key"), "--name", "good", "--role", "viewer")
    short = keys.directory / "clients" / "short.key"
    short.write_text(key_file_text({"public-key": "x" * 39}))
    assert "39 characters" in keys("list", code=1)
    short.unlink()
    (keys.directory / "clients" / "good.key").chmod(0o646)
    assert "chmod 644" in keys("list", code=1)
    (keys.directory / "clients" / "good.key").chmod(0o644)
    (row,) = json.loads(keys("list", "--json"))["keys"]
    assert (row["name"], row["role"]) == ("good", "viewer")


def test_rotate_replaces_a_pair_and_says_what_follows(keys):
    assert "is missing" in keys("rotate", code=1)
    keys("init", "--daemon")
    keys("init")
    keys("allow", str(keys.directory / "client.key"), "--name", "me")
    former = load_public_key(keys.directory / "server.key")
    said = keys("rotate")
    current = load_public_key(keys.directory / "server.key")
    assert current != former
    assert load_key_pair(keys.directory / "server.key_secret").public == current
    assert "restart msmon-daemon" in said
    assert "to: me" in said
    own = load_public_key(keys.directory / "client.key")
    keys("rotate", "--own")
    assert load_public_key(keys.directory / "client.key") != own


def test_a_directory_open_to_others_is_refused_with_the_chmod(keys):
    keys("init")
    keys.directory.chmod(0o755)
    assert f"chmod 700 {keys.directory}" in keys("init", code=1)


def test_show_without_keys_says_how_to_make_them(keys):
    assert "msmon keys init" in keys("show")
    keys("init", "--daemon")
    (row,) = json.loads(keys("show", "--json"))["keys"]
    assert row["use"] == "daemon"
