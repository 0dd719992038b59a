"""A message in hand, at the other end of a url."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.clock import Seconds, seconds
from penstock.errors import ConfigError
from penstock.events import Event
from penstock.remote.events import event_of
from penstock.remote.queue_documents import HeldDocument
from penstock.surface.delivery import Delivery

if TYPE_CHECKING:
    from penstock.remote.queue import RemoteQueue


class RemoteDelivery(Delivery):
    """A message of a served queue."""

    __slots__ = ("_settled", "attempt", "consumer", "deadline", "event", "group", "queue", "token")

    # Attributes of its own in place of the surface's properties, which slots make possible.
    queue: RemoteQueue
    token: str
    attempt: int
    deadline: datetime
    group: str
    consumer: str | None
    event: Event
    _settled: bool

    def __init__(self, queue: RemoteQueue, found: HeldDocument) -> None:
        self.queue = queue
        self.token = found.token
        self.attempt = found.attempt
        self.deadline = found.deadline
        self.group = found.group
        self.consumer = found.consumer
        self.event = event_of(found.event)
        self._settled = False

    def _do(self, what: str, body: Any = None) -> bytes:
        return self.queue._send("POST", "deliveries", self.token, what, body=body)

    def ack(self) -> None:
        """Settles the message, durably. StaleDelivery when the lease was lost, or the delivery was settled already."""
        self._do("ack")
        self._settled = True

    def nack(self, *, delay: Seconds | None = None, error: str | None = None, dead: bool = False) -> None:
        """Gives the message back to its position, after `delay` (the policy's, unless given); `dead` gives it up."""
        if error is not None and not isinstance(error, str):
            raise ConfigError(f"error must be text, not {error!r:.80}")
        wait = None if delay is None else seconds(delay, "delay")
        self._do("nack", {"delay": wait, "error": error, "dead": dead})
        self._settled = True

    def extend(self, lease: Seconds | None = None) -> None:
        """Keeps the message for `lease` more seconds from now (the policy's lease, unless given)."""
        body = {"lease": None if lease is None else seconds(lease, "lease")}
        answer = msgspec.json.decode(self._do("extend", body))
        self.deadline = datetime.fromisoformat(answer["deadline"])

    def release(self) -> None:
        """Gives the message back at once without counting the attempt: for shutting down."""
        self._do("release")
        self._settled = True
