"""The examples in deploy/ are well-formed, use existing options, and can do no harm."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from msmon.bus.endpoints import DEFAULT_PORT, SYSTEM_DIRECTORY
from msmon.commands.daemon.command import CREDENTIAL
from msmon.commands.daemon.config import read_config

yaml = pytest.importorskip("yaml")

DEPLOY = Path(__file__).parents[2] / "deploy"
MANIFESTS = sorted((DEPLOY / "k8s").glob("*.yaml"))
SCRIPTS = sorted((DEPLOY / "slurm").glob("*.sh"))


def objects(*paths: Path) -> list[dict[str, Any]]:
    return [each for path in paths for each in yaml.safe_load_all(path.read_text("utf-8"))]


def pods() -> Iterator[dict[str, Any]]:
    for each in objects(*MANIFESTS):
        if each["kind"] in ("DaemonSet", "Job"):
            yield each["spec"]["template"]["spec"]


def find(kind: str, name: str) -> dict[str, Any]:
    (found,) = (
        each
        for each in objects(*MANIFESTS)
        if (each["kind"], each["metadata"]["name"]) == (kind, name)
    )
    return found


def test_there_is_something_to_check() -> None:
    assert {path.name for path in MANIFESTS} >= {"daemonset.yaml", "keys.yaml", "example-job.yaml"}
    assert SCRIPTS


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_every_object_is_complete(path: Path) -> None:
    for each in objects(path):
        assert {"apiVersion", "kind", "metadata"} <= set(each)
        assert each["metadata"]["name"]


def test_every_mount_has_its_volume_and_every_volume_its_mount() -> None:
    for pod in pods():
        volumes = {volume["name"] for volume in pod["volumes"]}
        mounts = {mount["name"] for each in pod["containers"] for mount in each["volumeMounts"]}
        assert volumes == mounts


def test_the_socket_is_mounted_as_its_directory() -> None:
    for pod in pods():
        host_paths = [volume["hostPath"] for volume in pod["volumes"] if "hostPath" in volume]
        (directory,) = (each for each in host_paths if "/run/" in each["path"])
        assert directory == {"path": str(SYSTEM_DIRECTORY), "type": "DirectoryOrCreate"}


def test_the_daemon_accepts_its_configuration(tmp_path: Path) -> None:
    config = tmp_path / "daemon.toml"
    config.write_text(find("ConfigMap", "msmon-daemon")["data"]["daemon.toml"])
    values = read_config(config, must_exist=True)
    assert values["listen"] == (f"0.0.0.0:{DEFAULT_PORT}",)
    container = find("DaemonSet", "msmon-daemon")["spec"]["template"]["spec"]["containers"][0]
    state = {each["name"]: each["value"] for each in container["env"]}["MSMON_STATE_DIR"]
    assert state in {mount["mountPath"] for mount in container["volumeMounts"]}
    assert all(root.startswith(f"{state}/") for root in values["export-root"])


def test_the_secrets_have_the_names_that_the_daemon_reads() -> None:
    assert list(find("Secret", "msmon-server-key")["stringData"]) == [CREDENTIAL]
    pod = find("DaemonSet", "msmon-daemon")["spec"]["template"]["spec"]
    used = {volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume}
    assert used == {"msmon-server-key", "msmon-client-keys"}


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_scripts_never_hold_up_a_job(path: Path, tmp_path: Path) -> None:
    bash = str(shutil.which("bash"))
    nothing = {"PATH": str(tmp_path), "SLURM_JOB_ID": "123_4", "SLURM_JOB_USER": "nobody"}
    done = subprocess.run([bash, str(path)], env=nothing, capture_output=True, text=True)
    assert done.returncode == 0
    exports = [line for line in done.stdout.splitlines() if line.startswith("export ")]
    assert ("export MSMONITOR_USE_DAEMON=1" in exports) == (path.name == "task_prolog.sh")
    assert os.access(path, os.X_OK)
