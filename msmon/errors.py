"""The one exception tree of msmon.

Every error that a person may see carries what went wrong, what to do next, and
the exit code that a command ends with. ``commands`` has one handler for all::

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
    └── SinkError                 1  an output can't be written
"""

from __future__ import annotations


class MsmonError(Exception):
    """Base of all errors of msmon.

    ``message`` is one sentence on what went wrong; ``next_step`` is one sentence
    on what to do about it (may be empty).
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
    """The native callbacks can't run here: CPU without code, or no executable mappings."""


class MsptiError(MsmonError):
    """An MSPTI function returned a result other than ``MSPTI_SUCCESS``."""

    def __init__(self, function: str, result: int, result_name: str, next_step: str = "") -> None:
        super().__init__(f"{function} returned {result_name} ({result})", next_step)
        self.function = function
        self.result = result
        self.result_name = result_name


class BusError(MsmonError):
    """A daemon can't be reached, refuses us, or speaks another language."""


class DaemonUnreachable(BusError):
    """Nothing answers at the endpoint within the time-out."""


class HandshakeRefused(BusError):
    """Something listens at the endpoint, but the secured connection was not made."""


class ProtocolMismatch(BusError):
    """The two sides speak different major versions of the protocol."""


class CommandRefused(MsmonError):
    """A command was understood and not carried out."""


class SinkError(MsmonError):
    """An output can't be opened or written."""
