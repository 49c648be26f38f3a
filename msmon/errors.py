"""The exceptions of msmon.

Each carries what went wrong, what to do next, and the exit code of the command that it ends.
The numbers are exit codes::

    MsmonError                    1
    ├── UsageError                2  an option, a setting or a message field is wrong
    ├── LibraryUnavailable        1  libmspti.so is absent or can't be loaded safely
    ├── NativeCodeUnavailable     1  executable mappings are forbidden, or no code for this CPU
    ├── MsptiError                1  an MSPTI call returned something other than success
    ├── BusError                  1  a daemon can't be reached or doesn't understand us
    │   ├── DaemonUnreachable     1
    │   ├── HandshakeRefused      1
    │   └── ProtocolMismatch      1
    ├── CommandRefused            1  the other side said no, and why
    └── SinkError                 1  files or another target can't be written
"""

from __future__ import annotations


class MsmonError(Exception):
    """Base of all errors of msmon.

    ``message`` is one sentence: what went wrong. ``next_step`` is one sentence: what to do
    about it; it may be "".
    """

    exit_code = 1

    def __init__(self, message: str, next_step: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.next_step = next_step

    def __str__(self) -> str:
        return f"{self.message}\n{self.next_step}" if self.next_step else self.message


class UsageError(MsmonError):
    """An option, a setting or a message field has a value that can't be used."""

    exit_code = 2


class LibraryUnavailable(MsmonError):
    """libmspti.so is absent, or loading it would abort the process."""


class NativeCodeUnavailable(MsmonError):
    """The native callbacks can't run: no code for this CPU, or executable memory is forbidden."""


class MsptiError(MsmonError):
    """An MSPTI function returned a result other than ``MSPTI_SUCCESS``."""

    def __init__(self, function: str, result: int, result_name: str, next_step: str = "") -> None:
        super().__init__(f"{function} returned {result_name} ({result})", next_step)
        self.function = function
        self.result = result
        self.result_name = result_name


class BusError(MsmonError):
    """A daemon can't be reached, refuses us, or speaks another protocol."""


class DaemonUnreachable(BusError):
    """Nothing answers at the endpoint within the time-out."""


class HandshakeRefused(BusError):
    """Something listens at the endpoint, but no encrypted connection could be made."""


class ProtocolMismatch(BusError):
    """The two sides speak different major versions of the protocol."""


class CommandRefused(MsmonError):
    """The other side understood a command and refused it; the message says why."""


class SinkError(MsmonError):
    """A sink can't open or write its target."""
