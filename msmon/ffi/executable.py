"""Mapping machine code read and execute, never writable and executable at once."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os

from msmon.errors import NativeCodeUnavailable

_MFD_EXEC = 0x10  # <linux/memfd.h>; needed where sysctl vm.memfd_noexec is 1, unknown before 6.3
_MAP_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
)
_libc.mprotect.restype = ctypes.c_int
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.munmap.restype = ctypes.c_int
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


def map_code(code: bytes) -> int:
    """Map ``code`` read and execute for the life of the process and return its address.

    A private mapping of a memfd is tried first, then an anonymous mapping that is made
    executable after it was written. Raises NativeCodeUnavailable when both are forbidden.
    """
    try:
        return _map_from_memfd(code)
    except OSError as memfd_error:
        try:
            return _map_anonymous(code)
        except OSError as error:
            raise NativeCodeUnavailable(
                "executable memory is forbidden in this process "
                f"(memfd: {memfd_error.strerror}; anonymous mapping: {error.strerror})",
                "allow execmem for it in the security policy, or set MSMON_PYTHON_CALLBACKS=1 "
                "and accept that the job can hang",
            ) from error


def _map_from_memfd(code: bytes) -> int:
    descriptor = _memfd()
    try:
        written = os.write(descriptor, code)
        if written != len(code):
            raise OSError(errno.EIO, "short write")
        return _mmap(len(code), mmap.PROT_READ | mmap.PROT_EXEC, mmap.MAP_PRIVATE, descriptor)
    finally:
        os.close(descriptor)


def _memfd() -> int:
    if not hasattr(os, "memfd_create"):  # Python built against an old C library
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    try:
        return os.memfd_create("msmon", os.MFD_CLOEXEC | _MFD_EXEC)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.memfd_create("msmon", os.MFD_CLOEXEC)


def _map_anonymous(code: bytes) -> int:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    address = _mmap(len(code), mmap.PROT_READ | mmap.PROT_WRITE, flags, -1)
    ctypes.memmove(address, code, len(code))
    if _libc.mprotect(address, len(code), mmap.PROT_READ | mmap.PROT_EXEC):
        error = ctypes.get_errno()
        _libc.munmap(address, len(code))
        raise OSError(error, os.strerror(error))
    return address


def _mmap(length: int, protection: int, flags: int, descriptor: int) -> int:
    address = _libc.mmap(None, length, protection, flags, descriptor, 0)
    if address is None or address == _MAP_FAILED:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return int(address)
