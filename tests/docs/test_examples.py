"""The examples in the documentation run as they stand there."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from fixtures.pages import Page, children, every_page
from job import Job, wait_for

from msmon.commands.daemon.command import daemon as daemon_command
from msmon.commands.daemon.config import read_config
from msmon.commands.daemon.unit import UNIT, system_files
from msmon.commands.main import cli

LIMIT_S = 60.0
COMMANDS = {"msmon": cli, "msmon-daemon": daemon_command}

SLEEP = """#!/bin/sh
# instead of a fixed time: until the job is registered
until msmon status --rank 0 >/dev/null 2>&1; do :; done
"""


@pytest.fixture
def shell_environ(tmp_path: Path) -> dict[str, str]:
    """An environment whose PATH has this tree's commands first."""
    programs = tmp_path / "bin"
    programs.mkdir()
    modules = {
        "python": "",
        "msmon": "-m msmon.commands.main",
        "msmon-daemon": "-m msmon.commands.daemon",
    }
    scripts = {
        name: f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -W error {module} "$@"\n'
        for name, module in modules.items()
    }
    for name, text in {**scripts, "sleep": SLEEP}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MSMON")}
    return {**kept, "PATH": f"{programs}:{os.environ['PATH']}"}


def test_the_walk_through_of_the_readme_writes_exactly_the_matching_records(
    job: Job, shell_environ: dict[str, str]
) -> None:
    ledger = job.directory / "ledger.json"
    script = Page("README.md").code("", "train.py")
    assert "MSMON_SIMULATE=1 " in script
    script = script.replace("MSMON_SIMULATE=1", f"MSMON_SIMULATE=rate=2000,ledger={ledger}")
    shell_environ |= {
        "MSMON_RUNTIME_DIR": str(job.directory / "run"),
        "MSMON_KEYS_DIR": str(job.keys),
    }
    job.start_daemon()
    done = subprocess.run(
        ["bash", "-e", "-c", script + "kill %1\n"],
        cwd=job.directory,
        env=shell_environ,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    names = [path.name for path in (job.directory / "out").glob("[!.]*")]
    assert names == done.stdout.splitlines()[-1:]
    path = job.directory / "out" / names[0]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    written = Counter(line["name"] for line in lines if line["kind"] == "Kernel")
    truth = json.loads(ledger.read_text())["operators"]
    assert written == {
        row["name"]: row["count"]
        for row in truth
        if row["kind"] == "Kernel" and "MatMul" in row["name"]
    }
    count = sum(written.values())
    assert f" records recorded = {count} sent + " in done.stdout
    assert f"; jsonl: {count} written\n" in done.stdout


def run_python(code: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """Run code in a simulated rank without a daemon."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("MSMON")}
    environ |= {
        "MSMON_SIMULATE": "step_ms=20",
        "MSMON_RUNTIME_DIR": str(directory / "run"),
        "RANK": "0",
    }
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=directory,
        env=environ,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )


TRAIN = """
import time
import msmon
def train_some_steps():
    for _ in range(50):
        time.sleep(0.02)
        msmon.step()
"""


def test_the_example_of_registering_runs(tmp_path: Path) -> None:
    code = Page("docs/python.md").code("python", "msmon.init()")
    done = run_python(f"batches, train = range(3), print\n{code}", tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n1\n2\n", "")


def test_the_example_of_monitor_collects_and_saves(tmp_path: Path) -> None:
    code = Page("docs/python.md").code("python", "Monitor(")
    shown = "print(len(durations_ns), int(durations_ns.min()))"
    done = run_python(f"{TRAIN}\n{code}\n{shown}", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    *kernels, totals = done.stdout.splitlines()
    assert len(kernels) == 3
    assert all("MatMul" in line for line in kernels)
    assert min(map(int, totals.split())) > 0
    assert (tmp_path / "kernels.xlsx").stat().st_size > 0


def test_the_example_of_the_mspti_classes_calls_back(tmp_path: Path) -> None:
    code = Page("docs/compatibility.md").code("python", "KernelMonitor")
    shown = "print('kernels', sum(map(len, durations.values())))"
    done = run_python(f"{TRAIN}\n{code}\n{shown}", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    *ranges, (word, count) = (line.rsplit(" ", 1) for line in done.stdout.splitlines())
    assert word == "kernels"
    assert int(count) > 100
    assert ranges
    assert all(int(length) > 0 for _, length in ranges)


def test_the_example_of_a_sink_works_in_a_daemon(job: Job) -> None:
    page = Page("docs/outputs.md")
    package = job.directory / "package"
    info = package / "slowest-1.dist-info"
    info.mkdir(parents=True)
    (package / "slowest.py").write_text(page.code("python", "class SlowestSink"))
    declared = page.code("toml", "entry-points").replace('"', "")
    names = declared.replace("project.entry-points.", "")
    (info / "entry_points.txt").write_text(names)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: slowest\nVersion: 1\n")

    (option,) = re.findall(r"`msmon-daemon (--sink slowest:\S+)`", page.text)
    written = job.directory / "slowest.txt"
    job.daemon_options += tuple(option.replace("/data/slowest.txt", str(written)).split())
    inherited = os.environ.get("PYTHONPATH", "")
    job.daemon_variables = {"PYTHONPATH": f"{package}:{inherited}"}
    job.start_daemon()
    job.start_ranks()
    assert job.command("start", kinds="Kernel", report_interval_s=0.2).outcome == "ok"
    wait_for(lambda: "us\n" in written.read_text(), "a window")
    assert job.command("stop").outcome == "ok"
    wait_for(lambda: "ended: stopped" in written.read_text(), "the end")
    lines = written.read_text().splitlines()
    assert all(line.startswith("rank 0 ") for line in lines)
    windows = [
        line for line in lines if re.fullmatch(r"rank 0 step \d+: Kernel .* [\d.]+ us", line)
    ]
    assert len(windows) % 3 == 0
    assert [line for line in lines if " kernels, longest: " in line]
    job.end_daemon(signal.SIGTERM)


def test_the_example_of_a_configuration_is_accepted(tmp_path: Path) -> None:
    config = tmp_path / "daemon.toml"
    config.write_text(Page("docs/deployment.md").code("toml", "allow-users"))
    assert read_config(config, must_exist=True)["allow-users"] == "everybody"


def command_lines() -> Iterator[tuple[str, str]]:
    for page in every_page():
        for language, code in page.code_blocks:
            for line in () if language else code.splitlines():
                text = re.sub(r"\s+#.*|\s*[|>&].*", "", line).strip()
                if text.split(" ")[0] in COMMANDS:
                    yield page.name, text


@pytest.mark.parametrize(("page", "line"), sorted(set(command_lines())))
def test_every_command_line_has_valid_options(
    page: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "client.key").touch()
    (tmp_path / "out").mkdir()
    name, *arguments = shlex.split(line)
    command = COMMANDS[name]
    while subcommands := children(command):
        name, *arguments = arguments
        command = subcommands[name]
    command.make_context(name, arguments)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
@pytest.mark.parametrize("of_root", [False, True], ids=["as it is shipped", "of root"])
def test_the_figures_of_the_unit_are_those_of_systemd(tmp_path: Path, of_root: bool) -> None:
    page = Page("docs/deployment.md")
    for file in system_files("/bin/sh"):
        if file.path.name == UNIT:
            text = file.text
    if of_root:
        text = text.replace("[Install]", page.code("ini", "CAP_SETUID") + "\n[Install]")
    (tmp_path / UNIT).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", "--no-pager", str(tmp_path / UNIT)],
        capture_output=True,
        text=True,
    )
    if "unrecognized option" in done.stderr:
        pytest.skip("this systemd-analyze can't look at files")
    (measured,) = re.findall(rf"exposure level for {UNIT}: ([0-9.]+)", done.stdout)
    said = re.findall(r"`systemd-analyze security` rates it ([0-9.]+)\.\s", page.text)
    # other versions of systemd weigh a little differently
    assert float(said[of_root]) == pytest.approx(float(measured), abs=0.4)
    row = f"| `systemd-analyze security` | {said[0]} | {said[1]} | |"
    assert row in Page("SECURITY.md").text
