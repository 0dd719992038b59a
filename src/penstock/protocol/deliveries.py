"""Deliveries over the wire: messages taken under leases, settled by their tokens; and the consumers that hold them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from penstock.documents.events import EventDocument
from penstock.errors import StaleDelivery, UnknownQueue
from penstock.protocol.operation import Limit, Operation
from penstock.queue.inspect import PendingDelivery, QueueConsumer
from penstock.surface.delivery import Outcome, TakeRequest


class PendingQuery(msgspec.Struct, omit_defaults=True):
    group: Annotated[str | None, Meta(description="of this group only")] = None
    limit: Limit = None


class LeaveRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Which consumer has ended."""

    consumer: str
    group: str = "default"


class WasListed(msgspec.Struct):
    """Whether a consumer was listed."""

    listed: bool


class ClaimRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Which deliveries to take over: those that no consumer has extended for `min_idle` seconds."""

    min_idle: float
    group: str = "default"
    consumer: str | None = None
    limit: int = 1
    lease: float | None = None


class DeliveryDocument(msgspec.Struct):
    """A message under a lease."""

    token: str
    attempt: int
    deadline: datetime
    group: str
    consumer: str | None
    event: EventDocument


class DeliveryList(msgspec.Struct):
    deliveries: list[DeliveryDocument]


class AckRequest(msgspec.Struct, forbid_unknown_fields=True):
    tokens: list[str]


class AckResult(msgspec.Struct, forbid_unknown_fields=True):
    """What the one who pushed the message with `reply=True` is told."""

    result: Any = None


class Acknowledged(msgspec.Struct):
    """How many of them were still held."""

    acknowledged: int


class NackRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """When the message is offered again, and why it was given back; `dead` gives it up."""

    delay: float | None = None
    error: str | None = None
    dead: bool = False
    traceback: str | None = None
    """Where it failed; kept with the error, up to 8 KiB."""
    default_delay: float = 0
    """Seconds to wait when there is no `delay` and the queue's policy has no `retry`: what a worker's failures wait."""


class ExtendRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    lease: float | None = None


class Extended(msgspec.Struct):
    deadline: datetime


class Settled(msgspec.Struct, omit_defaults=True):
    settled: Literal["ack", "nack", "release", "nothing"]
    outcome: Outcome | None = None
    """What became of a message given back: ready or waiting again, a dead letter, failed, or gone."""


class PendingList(msgspec.Struct):
    pending: list[PendingDelivery]


class ConsumerList(msgspec.Struct):
    consumers: list[QueueConsumer]


_QUEUE = "/queues/{queue}"
_DELIVERY = _QUEUE + "/deliveries/{token}"

TAKE_MESSAGES = Operation(
    "take_messages",
    "POST",
    _QUEUE + "/take",
    "Takes messages under a lease; waits for the first",
    role="write",
    body=TakeRequest,
    answer=DeliveryList,
    errors=(UnknownQueue,),
)
CLAIM_DELIVERIES = Operation(
    "claim_deliveries",
    "POST",
    _QUEUE + "/claim",
    "Takes over deliveries that no consumer extended",
    role="write",
    body=ClaimRequest,
    answer=DeliveryList,
    errors=(UnknownQueue,),
)
ACK_DELIVERIES = Operation(
    "ack_deliveries",
    "POST",
    _QUEUE + "/ack",
    "Settles several deliveries in one commit",
    role="write",
    body=AckRequest,
    answer=Acknowledged,
    errors=(UnknownQueue,),
)
READ_DELIVERY = Operation(
    "read_delivery",
    "GET",
    _DELIVERY,
    "One delivery",
    role="read",
    answer=DeliveryDocument,
    errors=(UnknownQueue, StaleDelivery),
)
ACK_DELIVERY = Operation(
    "ack_delivery",
    "POST",
    _DELIVERY + "/ack",
    "Settles a delivery",
    role="write",
    body=AckResult,
    answer=Settled,
    errors=(UnknownQueue, StaleDelivery),
)
NACK_DELIVERY = Operation(
    "nack_delivery",
    "POST",
    _DELIVERY + "/nack",
    "Gives a message back, or up",
    role="write",
    body=NackRequest,
    answer=Settled,
    errors=(UnknownQueue, StaleDelivery),
)
EXTEND_DELIVERY = Operation(
    "extend_delivery",
    "POST",
    _DELIVERY + "/extend",
    "Keeps a message for longer",
    role="write",
    body=ExtendRequest,
    answer=Extended,
    errors=(UnknownQueue, StaleDelivery),
)
RELEASE_DELIVERY = Operation(
    "release_delivery",
    "POST",
    _DELIVERY + "/release",
    "Gives a message back without counting the attempt; a lease that is lost is no error",
    role="write",
    answer=Settled,
    errors=(UnknownQueue,),
)
LIST_PENDING = Operation(
    "list_pending",
    "GET",
    _QUEUE + "/pending",
    "Deliveries in flight",
    role="read",
    query=PendingQuery,
    answer=PendingList,
    errors=(UnknownQueue,),
)
LEAVE_QUEUE = Operation(
    "leave_queue",
    "POST",
    _QUEUE + "/leave",
    "Says that a consumer has ended; what it holds stays with it until its leases end",
    role="write",
    body=LeaveRequest,
    answer=WasListed,
    errors=(UnknownQueue,),
)
LIST_CONSUMERS = Operation(
    "list_consumers",
    "GET",
    _QUEUE + "/consumers",
    "Workers, and other consumers that gave their name",
    role="read",
    answer=ConsumerList,
    errors=(UnknownQueue,),
)

OPERATIONS: tuple[Operation[object], ...] = (
    TAKE_MESSAGES,
    CLAIM_DELIVERIES,
    ACK_DELIVERIES,
    READ_DELIVERY,
    ACK_DELIVERY,
    NACK_DELIVERY,
    EXTEND_DELIVERY,
    RELEASE_DELIVERY,
    LIST_PENDING,
    LEAVE_QUEUE,
    LIST_CONSUMERS,
)
