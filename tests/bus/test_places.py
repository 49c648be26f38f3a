"""Which directories nobody else can change, and what is said of the others."""

from __future__ import annotations

import os

import pytest

from msmon.bus.places import Unguarded, require_guarded

OTHER = 23456

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give things to others")


def test_a_directory_is_made_where_the_way_is_guarded(tmp_path):
    require_guarded(tmp_path / "a" / "b")
    assert not (tmp_path / "a").exists()
    require_guarded(tmp_path / "a" / "b", make=True)
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700


def test_a_directory_that_others_may_write_is_named_with_the_command(tmp_path):
    open_one = tmp_path / "open"
    (open_one / "mine").mkdir(parents=True)
    open_one.chmod(0o777)
    with pytest.raises(Unguarded, match=r"open can be changed .*mode 777") as raised:
        require_guarded(open_one / "mine")
    assert f"chmod go-w {open_one}" in raised.value.next_step


@root_only
def test_a_group_that_may_write_must_be_the_owners_private_one(tmp_path):
    place = tmp_path / "state"
    place.mkdir()
    place.chmod(0o775)
    require_guarded(place)
    os.chown(place, -1, OTHER)
    with pytest.raises(Unguarded, match="mode 775"):
        require_guarded(place)


def test_in_a_sticky_directory_only_what_is_ours_counts(tmp_path):
    tmp_path.chmod(0o1777)
    require_guarded(tmp_path / "mine", make=True)
    with pytest.raises(Unguarded, match="can be changed"):
        require_guarded(tmp_path)


def test_own_links_are_followed_to_what_is_looked_at_as_well(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "absolute").symlink_to(tmp_path / "link")
    require_guarded(tmp_path / "absolute" / ".." / "absolute")
    (tmp_path / "real").chmod(0o777)
    with pytest.raises(Unguarded, match="real can be changed"):
        require_guarded(tmp_path / "absolute")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OSError, match="symbolic links"):
        require_guarded(tmp_path / "loop")


@root_only
def test_directories_and_links_of_others_are_refused(tmp_path):
    theirs = tmp_path / "theirs"
    (theirs / "ours").mkdir(parents=True)
    os.chown(theirs, OTHER, OTHER)
    with pytest.raises(Unguarded, match=f"theirs belongs to uid {OTHER}"):
        require_guarded(theirs / "ours")
    tmp_path.chmod(0o1777)
    (tmp_path / "link").symlink_to("/etc")
    os.chown(tmp_path / "link", OTHER, OTHER, follow_symlinks=False)
    with pytest.raises(Unguarded, match=f"link is a link of uid {OTHER}"):
        require_guarded(tmp_path / "link")
