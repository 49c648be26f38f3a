"""``msmon run`` changes the environment and nothing else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from msmon.commands.run import job_environment

MSMON = [sys.executable, "-m", "msmon.commands.main", "run"]
SHOW = "import json, os; print(json.dumps(dict(os.environ)))"


def run(*command: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*MSMON, *command], capture_output=True, text=True, **options)


@pytest.mark.parametrize("separator", [[], ["--"]])
def test_arguments_and_exit_code_are_the_commands_own(separator):
    program = "import sys; print(sys.argv[1:]); sys.exit(7)"
    done = run(*separator, sys.executable, "-c", program, "--help", "--", "-x")
    assert (done.returncode, done.stderr) == (7, "")
    assert done.stdout == "['--help', '--', '-x']\n"


def test_an_option_that_run_does_not_have_is_a_wrong_option():
    done = run("--foo", sys.executable, "-c", "print('ran')")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--foo" in done.stderr


def test_only_the_switch_is_added_to_the_environment():
    environ = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    done = run(sys.executable, "-I", "-c", SHOW, env=environ)
    seen = json.loads(done.stdout)
    assert {name: seen[name] for name in environ} == environ
    assert {name for name in seen if name not in environ} <= {
        "MSMONITOR_USE_DAEMON",
        "MSMON_RANK_PROCESS",
        "LC_CTYPE",  # Python's own coercion of the C locale
    }
    assert seen["MSMONITOR_USE_DAEMON"] == "1"


def test_the_command_takes_the_place_of_msmon():
    program = "import os, signal; print(os.getpid(), flush=True); signal.pause()"
    command = [*MSMON, sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) == process.pid
        process.send_signal(signal.SIGTERM)
    assert process.returncode == -signal.SIGTERM


def test_signals_that_python_ignores_are_not_ignored_in_the_command():
    done = run("sh", "-c", "kill -PIPE $$; echo survived")
    assert (done.returncode, done.stdout) == (-signal.SIGPIPE, "")


def test_a_command_that_is_not_there(tmp_path):
    done = run("no-such-command-anywhere")
    assert done.returncode == 127
    assert "no-such-command-anywhere" in done.stderr
    assert "Traceback" not in done.stderr
    assert run(str(tmp_path)).returncode == 126
    assert run().returncode == 2


def cann(root: Path, version: str) -> dict[str, str]:
    (root / "lib64").mkdir(parents=True)
    (root / "lib64" / "libmspti.so").write_bytes(b"")
    (root / "ascend_toolkit_install.info").write_text(f"package_name=x\nversion={version}\n")
    return {"ASCEND_HOME_PATH": str(root)}


@pytest.mark.parametrize(("version", "needed"), [("8.3.RC1", True), ("9.0.0", False)])
def test_mspti_is_preloaded_before_cann_9(tmp_path, version, needed):
    environ = cann(tmp_path, version)
    library = str(tmp_path / "lib64" / "libmspti.so")
    assert job_environment(environ).get("LD_PRELOAD", "") == (library if needed else "")
    other = job_environment({**environ, "LD_PRELOAD": "/other.so"})["LD_PRELOAD"]
    assert other == (f"{library}:/other.so" if needed else "/other.so")


def test_a_preload_that_is_there_is_left_alone(tmp_path):
    environ = {**cann(tmp_path, "8.2.0"), "LD_PRELOAD": "/a.so:/mine/libmspti.so"}
    assert job_environment(environ)["LD_PRELOAD"] == "/a.so:/mine/libmspti.so"
    assert "LD_PRELOAD" not in job_environment(
        {**cann(tmp_path / "b", "8.2"), "MSMON_SIMULATE": "1"}
    )
