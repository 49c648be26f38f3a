"""The ``msmon`` group: light to start, one handler for every error."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from msmon.commands.main import COMMANDS, cli
from msmon.errors import DaemonUnreachable

GROUPS = {"keys"}
"""Commands with subcommands only."""


def imported_by(arguments: str) -> set[str]:
    code = (
        "import sys; from msmon.commands.main import main\n"
        f"main({arguments})\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stderr.split())


def test_help_loads_no_command_and_nothing_heavy():
    loaded = imported_by('["--help"]')
    assert not loaded & {"zmq", "numpy", "rich", "msgpack", "asyncio"}
    assert not {name for name in loaded if name.startswith("msmon.bus")}


def test_help_lists_every_command(run):
    code, out, _ = run("--help")
    assert code == 0
    assert all(name in out and entry.summary in out for name, entry in COMMANDS.items())


@pytest.mark.parametrize("name", COMMANDS)
def test_every_listed_command_loads_and_has_help(run, name):
    assert cli.get_command(None, name) is not None
    code, out, _ = run(name, "--help")
    assert code == 0
    assert "Usage: msmon" in out


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in GROUPS])
def test_the_help_of_a_command_has_an_example(run, name):
    _, out, _ = run(name, "--help")
    assert f"  msmon {name} " in out


def test_an_unknown_command_or_option_ends_with_2(run):
    assert run("npu-monitr")[0] == 2
    code, _, err = run("status", "--colour")
    assert code == 2
    assert "--colour" in err


def test_an_error_is_a_sentence_and_a_next_step(run, daemon):
    daemon.error = DaemonUnreachable("no daemon runs on this machine", "start msmon-daemon")
    code, out, err = run("status")
    assert (code, out) == (1, "")
    assert err == "msmon: no daemon runs on this machine\n  start msmon-daemon\n"


def test_an_error_is_json_where_json_was_asked(run, daemon):
    daemon.error = DaemonUnreachable("no daemon runs on this machine", "start msmon-daemon")
    code, out, _ = run("status", "--json")
    assert code == 1
    assert json.loads(out) == {
        "outcome": "error",
        "error": "DaemonUnreachable",
        "text": "no daemon runs on this machine",
        "next_step": "start msmon-daemon",
        "rows": [],
        "daemon": {},
    }


def test_ctrl_c_ends_quietly_with_130(run, daemon):
    daemon.error = KeyboardInterrupt()
    code, out, err = run("status")
    assert (code, out.strip(), err.strip()) == (130, "", "")


@pytest.mark.parametrize(
    "arguments", [("status", "--json", "--colour"), ("status", "--json", "extra"), ("x", "--json")]
)
def test_a_usage_error_is_json_too_where_json_was_asked(run, arguments):
    code, out, err = run(*arguments)
    assert code == 2
    assert json.loads(out)["error"] == "UsageError"
    assert err.startswith("msmon: ")


def with_output(redirection: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; from msmon.commands.main import main; sys.exit(main(['--help']))"
    command = f'exec "$0" -c "$1" {redirection}'
    return subprocess.run(
        ["/bin/sh", "-c", command, sys.executable, code], stderr=subprocess.PIPE, text=True
    )


def test_a_full_disk_under_the_output_is_a_sentence():
    done = with_output(">/dev/full")
    assert done.returncode == 1
    assert done.stderr.startswith("msmon: No space left on device")
    assert "Traceback" not in done.stderr


def test_closed_streams_do_not_matter():
    done = with_output(">&- <&-")
    assert (done.returncode, done.stderr) == (0, "")
