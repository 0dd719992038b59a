"""A message in hand, at the other end of a url."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from penstock.clock import Seconds, seconds
from penstock.errors import Closed, ConfigError, PenstockError
from penstock.events import Event
from penstock.journal.storage.payload import encode_payload, is_binary
from penstock.observe.logs import Log
from penstock.protocol import deliveries as operations
from penstock.protocol.deliveries import AckResult, DeliveryDocument, ExtendRequest, NackRequest
from penstock.remote.events import event_of
from penstock.surface.delivery import Delivery, Outcome
from penstock.surface.failure import NackOptions

if TYPE_CHECKING:
    from penstock.remote.queues.queue import RemoteQueue

log = Log("penstock.queue")


class RemoteDelivery(Delivery):
    """A message of a served queue."""

    __slots__ = ("_outcome", "_settled", "attempt", "consumer", "deadline", "event", "group", "queue", "token")

    # Attributes of its own in place of the surface's properties, which slots make possible.
    queue: RemoteQueue
    token: str
    attempt: int
    deadline: datetime
    group: str
    consumer: str | None
    event: Event
    _settled: bool
    _outcome: Outcome | None

    def __init__(self, queue: RemoteQueue, found: DeliveryDocument) -> None:
        self.queue = queue
        self.token = found.token
        self.attempt = found.attempt
        self.deadline = found.deadline
        self.group = found.group
        self.consumer = found.consumer
        self.event = event_of(found.event)
        self._settled = False
        self._outcome = None

    def ack(self, *, result: object = None) -> None:
        """Settles the message, durably. StaleDelivery when the lease was lost, or the delivery was settled already.

        `result`: what the one who pushed it with `reply=True` is told; JSON, no bytes.
        """
        if is_binary(result):
            raise ConfigError("a reply over HTTP is JSON: bytes have no place in it")
        body = AckResult(msgspec.Raw(encode_payload(result)))
        self.queue._change(operations.ACK_DELIVERY, self.token, body=body)
        self._settled = True

    def _nack(self, options: NackOptions) -> None:
        failure = options.failure
        body = NackRequest(options.delay, failure.error, options.dead, failure.traceback, options.otherwise)
        self._outcome = self.queue._change(operations.NACK_DELIVERY, self.token, body=body).outcome
        self._settled = True

    def extend(self, lease: Seconds | None = None) -> None:
        """Keeps the message for `lease` more seconds from now (the policy's lease, unless given)."""
        body = ExtendRequest(None if lease is None else seconds(lease, "lease"))
        self.deadline = self.queue._change(operations.EXTEND_DELIVERY, self.token, body=body).deadline

    def release(self) -> None:
        """Gives the message back at once without counting the attempt: for shutting down. Never fails."""
        try:
            self.queue._change(operations.RELEASE_DELIVERY, self.token)
        except Closed:
            pass
        except PenstockError as error:  # what interrupted its holder matters more
            log.warning("%r could not be given back; its lease will end: %s", self, error)
        self._settled = True
