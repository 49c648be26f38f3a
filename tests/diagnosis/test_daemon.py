"""Daemon, keys, port and what is installed beside msmon."""

from __future__ import annotations

import os
import socket
import tempfile
import threading
from pathlib import Path

import pytest

from msmon.bus.keys import load_or_create_server_keys
from msmon.diagnosis import daemon, host, installation
from msmon.diagnosis.finding import Level


def test_no_daemon_fails_with_the_remedy_of_the_error(find) -> None:
    found = find(daemon.reachable)
    assert (found.level, found.remedy) == (Level.FAIL, "start msmon-daemon")


def test_a_daemon_that_runs_elsewhere_is_pointed_at(place, find) -> None:
    place.add_process(
        70, ["python", "-m", "msmon.commands.daemon"], environ={"MSMON_RUNTIME_DIR": "/run/other"}
    )
    assert "a daemon runs as pid 70" in find(daemon.reachable).details[0]
    assert "/run/other" in find(daemon.reachable).details[0]


def test_an_insecure_daemon_is_a_warning(place, find) -> None:
    place.answer(insecure=True)
    assert find(daemon.reachable).level is Level.WARN


def test_a_place_that_others_may_change_is_named_with_the_reason(place, find) -> None:
    directory = Path(place.environ["MSMON_RUNTIME_DIR"])
    assert find(daemon.places).level is Level.OK  # not there
    directory.mkdir()
    directory.chmod(0o755)
    assert find(daemon.places).level is Level.OK
    directory.chmod(0o777)
    found = find(daemon.places)
    assert (found.level, str(directory) in found.text) == (Level.WARN, True)
    assert "others may write" in found.details[0]
    directory.rename(directory.with_name("elsewhere"))
    directory.symlink_to("elsewhere")
    assert "is a link" in find(daemon.places).details[0]


@pytest.mark.parametrize(("mode", "seen"), [(0o755, True), (0o777, False)])
def test_who_listens_in_a_place_that_is_not_trusted_is_not_taken_for_the_daemon(
    place, mode: int, seen: bool
) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="msmon-") as directory,
        socket.socket(socket.AF_UNIX) as listener,
    ):
        place.environ["MSMON_RUNTIME_DIR"] = directory
        listener.bind(f"{directory}/daemon.sock")
        listener.listen()
        Path(directory).chmod(mode)
        place.add_process(os.getpid(), ["msmon-daemon"])
        found = daemon.daemon_process(place.surroundings())
        assert (found is not None) == seen
        assert found is None or found.pid == os.getpid()


def test_versions_that_differ_are_named(place, find) -> None:
    place.answer({"rank": 3, "pid": 30, "version": "0.0.9"})
    found = find(daemon.versions_agree)
    assert found.level is Level.WARN
    assert found.details == ("rank 3 pid 30: msmon 0.0.9",)
    place.answer({})
    assert find(daemon.versions_agree).level is Level.OK


def test_keys_are_read_and_their_modes_checked(place, find) -> None:
    assert "none in" in find(daemon.keys).text
    directory = Path(place.environ["MSMON_KEYS_DIR"])
    load_or_create_server_keys(directory)
    assert "server.key_secret" in find(daemon.keys).text
    (directory / "server.key_secret").chmod(0o644)
    found = find(daemon.keys)
    assert found.level is Level.FAIL
    assert "chmod 600" in found.remedy


def test_a_key_cut_short_is_named(place, find) -> None:
    directory = Path(place.environ["MSMON_KEYS_DIR"])
    load_or_create_server_keys(directory)
    (directory / "clients").mkdir(mode=0o700)
    (directory / "clients" / "ann.key").write_text('public-key = "short"\n')
    assert "ann.key has 5 characters" in find(daemon.keys).text


def test_a_port_held_by_something_else(place, find, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("localhost", 0)) as server:
        monkeypatch.setattr(daemon, "DEFAULT_PORT", server.getsockname()[1])
        ended = threading.Event()
        thread = threading.Thread(target=_hang_up, args=(server, ended))
        thread.start()
        place.add_process(80, ["dynolog"], name="dynolog")
        found = find(daemon.port)
        ended.set()
        thread.join()
    assert found.level is Level.WARN
    assert "dynolog (pid 80) listens there" in found.text


def _hang_up(server: socket.socket, ended: threading.Event) -> None:
    server.settimeout(0.05)
    while not ended.is_set():
        try:
            server.accept()[0].close()
        except OSError:  # nobody came yet
            continue


def test_a_running_dynolog_and_its_program_are_leftovers(place, find, tmp_path: Path) -> None:
    assert find(installation.other_products).level is Level.OK
    program = tmp_path / "bin" / "dyno"
    program.parent.mkdir()
    program.write_bytes(b"\x7fELF")
    program.chmod(0o755)
    place.add_process(80, ["dynolog"], name="dynolog")
    found = find(installation.other_products)
    assert found.details == (f"the program {program}", "dynolog runs as pid 80")
    program.write_text("#!/usr/bin/python\nfrom msmon.compat import dyno\n")
    assert find(installation.other_products).details == ("dynolog runs as pid 80",)


@pytest.mark.parametrize(
    ("value", "level"),
    [("1", Level.OK), ("0", Level.WARN), ("", Level.WARN), ("true", Level.WARN)],
)
def test_the_switch_of_jobs(place, find, value: str, level: Level) -> None:
    place.environ["MSMONITOR_USE_DAEMON"] = value
    assert find(installation.use_daemon).level is level


def test_python_callbacks_are_a_warning(place, find) -> None:
    assert find(host.executable_memory).level is Level.OK
    place.environ["MSMON_PYTHON_CALLBACKS"] = "1"
    assert find(host.executable_memory).level is Level.WARN


def test_little_room_is_a_warning_and_none_a_failure(find, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "GiB free" in find(host.disk).text
    monkeypatch.setattr(host, "LITTLE_ROOM_BYTES", 1 << 62)
    assert find(host.disk).level is Level.WARN
    monkeypatch.setattr(host, "NO_ROOM_BYTES", 1 << 62)
    assert find(host.disk).level is Level.FAIL
