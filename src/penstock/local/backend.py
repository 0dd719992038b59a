"""A journal's operations in this process: each is a function, found by the operation it implements."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

if TYPE_CHECKING:
    from penstock.journal.core import JournalCore
    from penstock.protocol.operation import Operation
    from penstock.queue.queue import LocalQueue
    from penstock.queue.registry import QueueRegistry

A = TypeVar("A")
F = TypeVar("F", bound=Callable[..., Any])

IMPLEMENTATIONS: dict[str, Callable[..., Any]] = {}
"""By the operation's name: a function of the backend, the names in the path, and the request, if there is one."""


def implements(operation: Operation[Any]) -> Callable[[F], F]:
    """Makes a function what an operation does, here and for those who ask over HTTP."""

    def register(implementation: F) -> F:
        IMPLEMENTATIONS[operation.name] = implementation
        return implementation

    return register


class LocalBackend:
    """Runs operations on the store itself."""

    def __init__(self, core: JournalCore, queues: QueueRegistry) -> None:
        self.core = core
        self.queues = queues

    def call(self, operation: Operation[A], *names: str, request: msgspec.Struct | None = None) -> A:
        """An operation's answer; `names` are those in its path."""
        import penstock.local.queues  # noqa: F401 - what it implements: loaded when first asked for

        implementation = IMPLEMENTATIONS[operation.name]
        found: A = implementation(self, *names) if request is None else implementation(self, *names, request)
        return found

    def find(self, operation: Operation[A], *names: str) -> A | None:
        """The answer to a look-up; None when there is no such thing."""
        return self.call(operation, *names)

    def queue(self, name: str) -> LocalQueue:
        """A queue that must be there."""
        return self.queues.existing(name)
