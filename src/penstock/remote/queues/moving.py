"""Redriving and moving messages of a served queue. The server asks conditions; functions are asked here."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.documents.conditions import Where
from penstock.errors import ConfigError
from penstock.events import Event
from penstock.protocol import queues as operations
from penstock.protocol.queues import MoveRequest, RedriveRequest
from penstock.queue.operations.repair import Redriven
from penstock.surface.queue import DEFAULT_GROUP, Queue

if TYPE_CHECKING:
    from penstock.remote.queues.queue import RemoteQueue


def redrive(
    queue: RemoteQueue, to: Queue | None, limit: int | None, chooser: Callable[[Event], bool] | None, dry_run: bool
) -> Redriven:
    """Sends dead letters and failed messages back to their queue."""
    request = RedriveRequest(to=None if to is None else _own_name(queue, to), limit=limit, dry_run=dry_run)
    if chooser is None or isinstance(chooser, Where):
        request.where = None if chooser is None else chooser.text
    else:
        # A function cannot travel: what it wants is found here, and named.
        groups = queue.groups() if queue.policy.mode == "fanout" else [DEFAULT_GROUP]
        given_up = [failure.event for group in groups for failure in queue.failures(group)]
        given_up += [letter.event for letter in queue.dead_letters()]
        request.ids = sorted({event.id for event in given_up if chooser(event)})
    if not dry_run:
        queue.journal._check_writable()
    answer = queue._client.call(operations.REDRIVE_QUEUE, queue.name, body=request)
    count = answer.would_redrive if dry_run else answer.redriven
    return Redriven(count or 0, answer.left)


def move(queue: RemoteQueue, to: Queue, limit: int | None, chooser: Callable[[Event], bool] | None) -> int:
    """Moves messages that are not in flight to the end of another queue; returns how many."""
    request = MoveRequest(to=_own_name(queue, to), limit=limit)
    if request.to == queue.name:
        raise ConfigError(f"queue {queue.name!r} cannot be moved to itself")
    if chooser is None or isinstance(chooser, Where):
        request.where = None if chooser is None else chooser.text
    else:
        request.ids = [event.id for event in queue if chooser(event)]
    return queue._change(operations.MOVE_MESSAGES, body=request).moved


def _own_name(queue: RemoteQueue, other: Queue) -> str:
    """The name of another queue of the same journal."""
    if not isinstance(other, type(queue)) or other.journal is not queue.journal:
        raise ConfigError(f"a queue of this journal is needed, not of another journal: {other!r:.80}")
    return other.name
