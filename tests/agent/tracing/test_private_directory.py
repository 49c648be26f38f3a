"""The directory of an unfinished trace leaves nothing behind."""

from __future__ import annotations

import os

import pytest

from msmon.agent.tracing import private_directory as module
from msmon.agent.tracing.private_directory import private_directory


def test_it_is_gone_afterwards_with_what_is_in_it(tmp_path):
    with private_directory(str(tmp_path)) as place:
        (inside,) = tmp_path.iterdir()
        assert inside.stat().st_mode & 0o777 == 0o700
        with open(f"{place}/unfinished", "w") as file:
            file.write("half")
    assert os.listdir(tmp_path) == []


def test_it_is_gone_where_it_can_not_be_opened(tmp_path, monkeypatch):
    """As in a process that has no descriptor left."""
    monkeypatch.setattr(module, "_HOLD", os.O_RDONLY | os.O_CREAT | os.O_EXCL)
    with pytest.raises(FileExistsError), private_directory(str(tmp_path)):
        pass
    assert os.listdir(tmp_path) == []
