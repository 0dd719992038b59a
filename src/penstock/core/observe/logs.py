"""Loggers that import `logging` at their first message; most commands log nothing, and start faster."""

from __future__ import annotations

from typing import Any


class Log:
    """A logger by name, with every method that `logging.getLogger(name)` has."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, method: str) -> Any:
        import logging

        return getattr(logging.getLogger(self._name), method)
