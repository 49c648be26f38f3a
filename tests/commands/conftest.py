"""A daemon for the commands that answers what a test tells it to."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field

import pytest

from msmon.bus.messages import Message, Reply
from msmon.commands.asking import connection as connection_module
from msmon.commands.main import main


@pytest.fixture(autouse=True)
def _plain_output(monkeypatch):
    """Whatever the terminal of the tests asks for, output is compared without colours."""
    monkeypatch.delenv("FORCE_COLOR", raising=False)


@dataclass
class Answering:
    """Takes the place of the client: keeps requests, gives ``reply`` or raises ``error``."""

    reply: Reply = field(default_factory=lambda: Reply("ok"))
    error: Exception | None = None
    requests: list[Message] = field(default_factory=list)

    def request(self, message: Message, timeout_s: float) -> Reply:
        self.requests.append(message)
        if self.error is not None:
            raise self.error
        return self.reply


@pytest.fixture
def daemon(monkeypatch):
    answering = Answering()
    monkeypatch.setattr(connection_module, "Client", lambda *_: contextlib.nullcontext(answering))
    monkeypatch.setattr(connection_module.Connection, "endpoint", lambda _: None)
    return answering


@pytest.fixture
def run(capsys):
    """Run ``msmon ARGUMENTS`` in this process; returns (exit code, stdout, stderr)."""

    def run_command(*arguments: str) -> tuple[int, str, str]:
        code = main(list(arguments))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run_command
