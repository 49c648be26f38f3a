"""Executable mappings: never writable, with a second way and one clear refusal."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable
from typing import Any

import pytest

from msmon.errors import NativeCodeUnavailable
from msmon.ffi import executable, machine_code

_CODE = machine_code.CALLBACKS.get(os.uname().machine)
pytestmark = pytest.mark.skipif(_CODE is None, reason="no native code for this CPU")


def _permissions(address: int) -> str:
    with open("/proc/self/maps") as maps:
        for line in maps:
            start, _, rest = line.partition("-")
            end, permissions = rest.split()[:2]
            if int(start, 16) <= address < int(end, 16):
                return permissions
    raise AssertionError(f"{address:#x} is not mapped")


def _runs(base: int) -> bool:
    word = ctypes.c_uint64(42)
    load = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p)(base + machine_code.LOAD_OFFSET)
    return bool(load(ctypes.addressof(word)) == 42)


def _forbid(number: int) -> Callable[..., Any]:
    def forbidden(*_: Any) -> Any:
        raise OSError(number, os.strerror(number))

    return forbidden


def test_code_is_executable_and_not_writable() -> None:
    base = executable.map_code(_CODE or b"")
    assert _permissions(base) == "r-xp"
    assert _runs(base)


def test_without_memfd_an_anonymous_mapping_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "memfd_create", _forbid(errno.EACCES))
    base = executable.map_code(_CODE or b"")
    assert _permissions(base) == "r-xp"
    assert _runs(base)


def test_a_kernel_that_does_not_know_the_exec_flag_is_asked_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    create = os.memfd_create
    asked = []

    def old_kernel(name: str, flags: int) -> int:
        asked.append(flags)
        if flags & 0x10:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return create(name, flags)

    monkeypatch.setattr(os, "memfd_create", old_kernel)
    assert _runs(executable.map_code(_CODE or b""))
    assert asked == [os.MFD_CLOEXEC | 0x10, os.MFD_CLOEXEC]


def test_where_both_ways_are_forbidden_the_refusal_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(executable, "_mmap", _forbid(errno.EPERM))
    with pytest.raises(NativeCodeUnavailable, match="executable memory is forbidden") as raised:
        executable.map_code(_CODE or b"")
    assert "MSMON_PYTHON_CALLBACKS=1" in raised.value.next_step
