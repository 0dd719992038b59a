"""What a command line came to, in this process or as one of its own."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from typing import Any


class Outcome:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err

    @property
    def documents(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def document(self) -> Any:
        assert len(self.documents) == 1, self.out
        return self.documents[0]


Cli = Callable[..., Outcome]
Start = Callable[..., subprocess.Popen[str]]
"""Starts a command line as a process of its own, which is killed at the end of the test if it has not ended."""


def first_line(process: subprocess.Popen[str]) -> Any:
    """The document that a process says first."""
    assert process.stdout is not None and process.stderr is not None
    line = process.stdout.readline()
    assert line, f"it ended: {process.stderr.read()}"
    return json.loads(line)
