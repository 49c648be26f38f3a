"""Keeps PyTorch from loading its compiler, which takes as long as PyTorch itself.

The first optimizer of a process imports ``torch._dynamo``, only to mark functions that must not
be compiled. The jobs here compile nothing, and a test job has many processes. The job of
``test_torch_traces`` and the busy one of ``test_torchrun`` load the real compiler.
"""

from __future__ import annotations

import sys
from unittest.mock import MagicMock

import torch


def install() -> None:
    """Put a stand-in for ``torch._dynamo`` in its place, before the first optimizer is made."""
    stand_in = MagicMock(name="torch._dynamo")
    stand_in.disable = lambda function, *_, **__: function
    sys.modules["torch._dynamo"] = stand_in
    torch._dynamo = stand_in
