"""A journal's operations at the other end of a url: each is a request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from penstock.documents.events import EventDocument
from penstock.errors import ReadOnly
from penstock.observe.sample import FailedMessage
from penstock.protocol.messages import FailureDocument, MessageDocument
from penstock.protocol.operation import Operation, converted
from penstock.protocol.queues import RedriveRequest
from penstock.queue.inspect import QueueMessage
from penstock.remote.client import Client
from penstock.remote.events import event_of

A = TypeVar("A")


class RemoteBackend:
    """Sends operations to the server that has the store."""

    def __init__(self, client: Client, *, read_only: bool) -> None:
        self.client = client
        self.read_only = read_only

    def call(self, operation: Operation[A], *names: str, request: msgspec.Struct | None = None, wait: float = 0.0) -> A:
        """An operation's answer; `names` are those in its path. `wait`: how long the server may take."""
        if operation.method != "GET" and not _changes_nothing(request):
            self.check_writable()
        query, body = (request, None) if operation.query is not None else (None, request)
        answer: A = _read(self.client.call(operation, *names, query=query, body=body, wait=wait))
        return answer

    def find(self, operation: Operation[A], *names: str) -> A | None:
        """The answer to a look-up; None when there is no such thing."""
        answer: A | None = _read(self.client.find(operation, *names))
        return answer

    def check_writable(self) -> None:
        """ReadOnly when the journal was opened so."""
        if self.read_only:
            raise ReadOnly("this journal was opened with read_only=True")


def _changes_nothing(request: object) -> bool:
    return isinstance(request, RedriveRequest) and request.dry_run


def _read(answer: Any) -> Any:
    """An answer with the values that its documents stand for."""
    return converted(answer, _READ)


def _message(one: MessageDocument) -> QueueMessage:
    return QueueMessage(**(msgspec.structs.asdict(one) | {"event": event_of(one.event)}))


def _failure(one: FailureDocument) -> FailedMessage:
    return FailedMessage(**(msgspec.structs.asdict(one) | {"event": event_of(one.event)}))


_READ: dict[type, Callable[[Any], object]] = {
    EventDocument: event_of,
    MessageDocument: _message,
    FailureDocument: _failure,
}
