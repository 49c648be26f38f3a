"""Only regular files are opened, at once, and never through a link that was not asked for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from msmon.errors import SinkError
from msmon.sinks.metrics_json import MetricsJsonSink
from msmon.sinks.regular_files import open_regular


def prepare(path: Path, what: str) -> Path:
    """Put a pipe, a directory or a link to a file at a path."""
    if what == "pipe":
        os.mkfifo(path)
    elif what == "directory":
        path.mkdir()
    else:
        target = path.with_name("victim")
        target.write_text("mine")
        path.symlink_to(target)
    return path


@pytest.mark.parametrize("what", ["pipe", "directory", "link"])
@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY | os.O_CREAT, os.O_RDWR])
def test_what_is_no_regular_file_is_refused(tmp_path: Path, what: str, flags: int) -> None:
    path = prepare(tmp_path / "data", what)
    with pytest.raises(OSError, match="data"):
        open_regular(path, flags)


def test_a_link_that_the_caller_named_is_followed(tmp_path: Path) -> None:
    path = prepare(tmp_path / "data", "link")
    with open(open_regular(path, os.O_RDONLY, follow=True)) as file:
        assert file.read() == "mine"


@pytest.mark.parametrize("what", ["pipe", "link"])
def test_metrics_are_not_appended_to_what_was_put_there(tmp_path: Path, what: str) -> None:
    path = prepare(tmp_path / "metrics.jsonl", what)
    with pytest.raises(SinkError, match="can't write"):
        MetricsJsonSink(path=str(path))
