"""The scratch directory of a conversion, and what becomes of those that were left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from msmon.conversion.targets.scratch import Scratch

CONVERT_UNTIL_KILLED = """
import sys
from pathlib import Path
from msmon.commands.main import main
from msmon.conversion.sources.json_lines import JsonlSource

whole = JsonlSource.batches

def endless(self, advance):
    yield from whole(self, advance)
    print("reading", flush=True)
    sys.stdin.read()

JsonlSource.batches = endless
sys.exit(main(["convert", *sys.argv[1:]]))
"""

Killed = Callable[[str, signal.Signals], int]


@pytest.fixture
def killed(tmp_path: Path, export: Callable[..., Any]) -> Killed:
    """Convert into ``out``, kill the command half way by a signal, return its exit code."""
    (tmp_path / "out").mkdir()
    source = export(tmp_path / "in", "Jsonl")[0]

    def convert(target: str, number: signal.Signals) -> int:
        out = tmp_path / "out"
        name = out / "one.file" if target in ("perfetto", "xlsx") else out
        command = [sys.executable, "-c", CONVERT_UNTIL_KILLED, str(source), "--to", target]
        with subprocess.Popen(
            [*command, "-o", str(name)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"reading\n"
            process.send_signal(number)
            return process.wait(60)

    return convert


@pytest.mark.parametrize("target", ["db", "xlsx", "perfetto"])
def test_a_terminated_conversion_leaves_nothing(
    target: str, tmp_path: Path, killed: Killed
) -> None:
    assert killed(target, signal.SIGTERM) == 128 + signal.SIGTERM
    assert os.listdir(tmp_path / "out") == []


def test_what_a_killed_conversion_left_goes_with_the_next(tmp_path: Path, killed: Killed) -> None:
    out = tmp_path / "out"
    assert killed("jsonl", signal.SIGKILL) == -signal.SIGKILL
    assert len(os.listdir(out)) == 1
    scratch = Scratch(out)
    assert os.listdir(out) == [scratch.path.name]
    scratch.remove()
    assert os.listdir(out) == []


def test_the_directory_of_a_living_conversion_stays(tmp_path: Path) -> None:
    living = Scratch(tmp_path)
    (living.path / "file").touch()
    other = Scratch(tmp_path)
    other.remove()
    assert (living.path / "file").exists()
    living.remove()
    living.remove()
    assert os.listdir(tmp_path) == []


def test_only_what_is_surely_a_scratch_directory_is_removed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    out = tmp_path / "out"
    named, shared = out / ".msmon-convert.notes", out / ".msmon-convert.shared__"
    for directory in (elsewhere, out, named, shared):
        directory.mkdir(mode=0o700)
    shared.chmod(0o755)
    (out / ".msmon-convert.linked__").symlink_to(elsewhere)
    os.mkfifo(out / ".msmon-convert.a_pipe__")
    before = sorted(os.listdir(out))
    Scratch(out).remove()
    assert sorted(os.listdir(out)) == before
    assert elsewhere.exists()
