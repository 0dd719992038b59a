"""What a command line came to."""

from __future__ import annotations

import json
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
