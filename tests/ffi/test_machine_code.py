"""The machine code: equal to its sources, and right on both CPUs."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from msmon.ffi import machine_code

_ASSEMBLY = Path(machine_code.__file__).parent / "assembly"
_DRIVER = Path(__file__).parents[1] / "native" / "code_driver.c"
_TOOL_PREFIX = {"x86_64": "x86_64-linux-gnu-", "aarch64": "aarch64-linux-gnu-"}
_CODE = {"callbacks": machine_code.CALLBACKS, "walk": machine_code.WALK}


def _tool(machine: str, name: str) -> str:
    native = machine == os.uname().machine
    candidates = [name] * native + [f"{_TOOL_PREFIX[machine]}{name}"]
    for candidate in candidates:
        if shutil.which(candidate):
            return candidate
    pytest.skip(f"no {name} for {machine}: none of {', '.join(candidates)} is installed")


def _assemble(machine: str, source: Path, directory: Path) -> bytes:
    assembled, raw = directory / "code.o", directory / "code.bin"
    subprocess.run([_tool(machine, "gcc"), "-c", str(source), "-o", str(assembled)], check=True)
    copy = [_tool(machine, "objcopy"), "-O", "binary", "-j", ".text", str(assembled), str(raw)]
    subprocess.run(copy, check=True)
    return raw.read_bytes()


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("name", ["callbacks", "walk"])
def test_bytes_are_what_the_assembly_source_gives(name: str, machine: str, tmp_path: Path) -> None:
    source = _ASSEMBLY / f"{name}_{machine}.S"
    assembled = _assemble(machine, source, tmp_path)
    assert _CODE[name][machine].hex() == assembled.hex()


@pytest.mark.parametrize("code", [machine_code.CALLBACKS, machine_code.WALK])
def test_both_cpus_are_served_and_begin_with_a_landing_pad(code: dict[str, bytes]) -> None:
    entries = (
        (machine_code.REQUEST_OFFSET, machine_code.COMPLETE_OFFSET)
        if code is machine_code.CALLBACKS
        else (machine_code.COUNT_OFFSET, machine_code.GATHER_OFFSET)
    )
    for entry in entries:
        assert code["x86_64"][entry : entry + 4] == bytes.fromhex("f30f1efa")  # endbr64
        assert code["aarch64"][entry : entry + 4] == bytes.fromhex("5f2403d5")  # bti c


def _driver_command(machine: str, directory: Path) -> list[str]:
    driver = directory / "code_driver"
    flags = ["-O2", "-static", "-pthread", "-std=gnu11", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([_tool(machine, "gcc"), *flags, str(_DRIVER), "-o", str(driver)], check=True)
    files = []
    for name, code in _CODE.items():
        files.append(directory / f"{name}.bin")
        files[-1].write_bytes(code[machine])
    numbers = (
        machine_code.REQUEST_OFFSET,
        machine_code.COMPLETE_OFFSET,
        machine_code.LOAD_OFFSET,
        machine_code.STORE_OFFSET,
        machine_code.CONTROL_OFFSET,
        machine_code.COUNT_OFFSET,
        machine_code.GATHER_OFFSET,
        machine_code.GATHER_SLACK_BYTES,
    )
    return [str(driver), *map(str, files), *map(str, numbers)]


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_code_keeps_its_promises_under_many_threads(machine: str, tmp_path: Path) -> None:
    emulator = [] if machine == os.uname().machine else [f"qemu-{machine}"]
    if emulator and shutil.which(emulator[0]) is None:
        pytest.skip(f"{emulator[0]} is not installed: the {machine} code can't run here")
    command = [*emulator, *_driver_command(machine, tmp_path)]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stdout
    lines = run.stdout.splitlines()
    assert lines[0] == "one thread ok"
    assert lines[1].startswith("8 threads ok")
    assert lines[2] == "walk ok"
