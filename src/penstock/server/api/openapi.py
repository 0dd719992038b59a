"""The API as an OpenAPI 3.1 document: what `/v1/openapi.json` answers, and what a test holds against the routes."""

from __future__ import annotations

from datetime import datetime
from functools import cache
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock.document import DraftDocument, EventDocument, ReceiptDocument
from penstock.journal.commit.catalog import Settings
from penstock.journal.upkeep.compaction import CompactReport
from penstock.observe.sample import Sample
from penstock.queue.inspect import PendingDelivery, QueueConsumer
from penstock.queue.run.schedule import Schedule
from penstock.server.access import Role
from penstock.server.api import deliveries, messages, queues, topics

PROBLEM = "application/problem+json"


class Query(msgspec.Struct):
    """A parameter in a query string."""

    name: str
    says: str
    schema: dict[str, Any] = msgspec.field(default_factory=lambda: {"type": "string"})


class Operation(msgspec.Struct):
    """One thing the API does."""

    method: str
    path: str
    says: str
    role: Role
    query: list[Query] = []
    body: Any = None
    answer: Any = None
    media: list[str] = msgspec.field(default_factory=lambda: ["application/json"])


_NUMBER = {"type": "integer", "minimum": 0}
_YES = {"type": "boolean"}
_TIME = "a time (ISO 8601), or how long ago: 15m, 1h, 7d"
_LIMIT = Query("limit", "how many at the most", _NUMBER)
_GROUP = Query("group", "the group; default unless given")
_CHOICE = [
    Query(
        "kind", "only events of this kind; may be given several times", {"type": "array", "items": {"type": "string"}}
    ),
    Query("key", "only events of this entity"),
    Query("scope", "only events of this scope"),
    Query("where", "only events for which this condition holds: payload.total > 10"),
]
_AFTER = Query("after", "the position to go on from, exclusive", _NUMBER)


def _says(name: str, **fields: Any) -> Any:
    """An answer that is an object with these fields."""
    return msgspec.defstruct(name, list(fields.items()))


_EVENTS = _says("Events", events=list[EventDocument])
_DELIVERIES = _says("Deliveries", deliveries=list[deliveries.DeliveryDocument])
_REMOVED = _says("Removed", removed=int)
_GONE = _says("Gone", removed=bool)
_SETTLED = _says("Settled", settled=str)

T, Q = "/topics/{topic}", "/queues/{queue}"
_FREE = dict[str, Any]

OPERATIONS = [
    Operation("get", "", "What the served journal is", "read", answer=_FREE),
    Operation("get", "/openapi.json", "This document", "read", answer=_FREE),
    Operation("get", "/stats", "Every topic and queue with rates, backlogs and lags", "read", answer=Sample),
    Operation("get", "/stats/live", "The same, whenever it changes", "read", media=["text/event-stream"]),
    Operation("post", "/flush", "Returns when everything submitted is on disk", "write", answer=_FREE),
    Operation("post", "/maintain", "Merges small blocks and applies retention, now", "admin", answer=_FREE),
    Operation(
        "post",
        "/append",
        "Appends drafts to several topics, all or nothing; each names its topic",
        "write",
        body=list[dict[str, Any]],
        answer=topics.Receipts,
    ),
    Operation("get", "/correlated/{correlation}", "Every event of a correlation", "read", answer=_EVENTS),
    Operation("get", "/topics", "The names of all topics", "read", answer=_says("TopicNames", topics=list[str])),
    Operation("get", T, "One topic: its ends, its consumers, its settings", "read", answer=topics.TopicDocument),
    Operation("patch", T + "/settings", "Changes what a topic keeps", "admin", body=Settings, answer=Settings),
    Operation(
        "get",
        T + "/events",
        "Events after a position: a page of JSON, a stream of lines, or Arrow record batches",
        "read",
        query=[
            _AFTER,
            Query("through", "the last position wanted", _NUMBER),
            _LIMIT,
            *_CHOICE,
            Query("since", f"only events recorded since {_TIME}"),
            Query("until", f"only events recorded before {_TIME}"),
            Query("reverse", "newest first", _YES),
            Query("payload", "string or binary, for Arrow"),
        ],
        answer=topics.Page,
        media=["application/json", "application/x-ndjson", "application/vnd.apache.arrow.stream"],
    ),
    Operation(
        "post",
        T + "/events",
        "Appends one event or many, all or nothing; `dedup` makes a repeat harmless",
        "write",
        body=DraftDocument | list[DraftDocument],
        answer=(ReceiptDocument, topics.Receipts),
    ),
    Operation("get", T + "/events/{event}", "One event by its position or its id", "read", answer=EventDocument),
    Operation(
        "get",
        T + "/live",
        "Follows a topic; resumes after Last-Event-ID",
        "read",
        query=[Query("after", "a position, or latest"), *_CHOICE],
        media=["text/event-stream"],
    ),
    Operation(
        "get",
        T + "/position",
        "The last position before a time",
        "read",
        query=[Query("time", _TIME)],
        answer=_says("Position", position=int),
    ),
    Operation(
        "get",
        T + "/cursors",
        "Every consumer and how far it has come",
        "read",
        answer=_says("Cursors", cursors=list[topics.CursorDocument], latest=int),
    ),
    Operation("get", T + "/cursors/{consumer}", "One consumer's cursor and lag", "read", answer=topics.CursorDocument),
    Operation(
        "put",
        T + "/cursors/{consumer}",
        "Commits a position (never back), or with `seek` moves anywhere",
        "write",
        body=topics.CursorChange,
        answer=topics.CursorDocument,
    ),
    Operation(
        "delete", T + "/cursors/{consumer}", "Forgets a consumer", "write", answer=_says("Forgotten", forgotten=bool)
    ),
    Operation("post", T + "/compact", "Removes history", "admin", body=topics.Compaction, answer=CompactReport),
    Operation("get", "/queues", "The names of all queues", "read", answer=_says("QueueNames", queues=list[str])),
    Operation("get", Q, "One queue: its policy, its groups, its numbers", "read", answer=queues.QueueDocument),
    Operation(
        "put",
        Q,
        "Makes a queue; another policy than the stored one is refused",
        "write",
        body=_FREE,
        answer=queues.QueueDocument,
    ),
    Operation("patch", Q, "Changes a queue's policy", "admin", body=_FREE, answer=_FREE),
    Operation("delete", Q, "Removes a queue with its messages", "admin", answer=_REMOVED),
    Operation(
        "get", Q + "/stats", "How many messages are in which state", "read", query=[_GROUP], answer=queues.StatsDocument
    ),
    Operation(
        "get",
        Q + "/messages",
        "Everything not acknowledged, in order",
        "read",
        query=[_AFTER, _LIMIT],
        answer=_says("Messages", events=list[EventDocument], next=int | None),
    ),
    Operation(
        "post",
        Q + "/messages",
        "Pushes a message, or several",
        "write",
        body=messages.Message,
        answer=(ReceiptDocument, topics.Receipts),
    ),
    Operation("get", Q + "/messages/{seq}", "One message, without taking it", "read", answer=EventDocument),
    Operation("get", Q + "/peek", "What would be taken next", "read", query=[_LIMIT, _GROUP], answer=_EVENTS),
    Operation(
        "post",
        Q + "/take",
        "Takes messages under a lease; waits for the first",
        "write",
        body=deliveries.Wish,
        answer=_DELIVERIES,
    ),
    Operation(
        "post",
        Q + "/claim",
        "Takes over deliveries nobody extended",
        "write",
        body=deliveries.Claim,
        answer=_DELIVERIES,
    ),
    Operation(
        "post",
        Q + "/ack",
        "Settles several deliveries in one commit",
        "write",
        body=deliveries.Tokens,
        answer=_says("Acknowledged", acknowledged=int),
    ),
    Operation("get", Q + "/deliveries/{token}", "One delivery", "read", answer=deliveries.DeliveryDocument),
    Operation("post", Q + "/deliveries/{token}/ack", "Settles a delivery", "write", answer=_SETTLED),
    Operation(
        "post",
        Q + "/deliveries/{token}/nack",
        "Gives a message back, or up",
        "write",
        body=deliveries.Nack,
        answer=_SETTLED,
    ),
    Operation(
        "post",
        Q + "/deliveries/{token}/extend",
        "Keeps a message for longer",
        "write",
        body=deliveries.Extension,
        answer=_says("Extended", deadline=datetime),
    ),
    Operation("post", Q + "/deliveries/{token}/release", "Gives it back, no attempt counted", "write", answer=_SETTLED),
    Operation(
        "get",
        Q + "/pending",
        "Deliveries in flight",
        "read",
        query=[_GROUP, _LIMIT],
        answer=_says("PendingDeliveries", pending=list[PendingDelivery]),
    ),
    Operation(
        "get",
        Q + "/failed",
        "Messages given up, with the reason",
        "read",
        query=[_GROUP, _LIMIT],
        answer=_says("FailedMessages", failed=list[messages.FailureDocument]),
    ),
    Operation(
        "get",
        Q + "/dead",
        "Dead letters, with the reason",
        "read",
        query=[_LIMIT],
        answer=_says("DeadLetters", dead=list[messages.FailureDocument]),
    ),
    Operation(
        "get",
        Q + "/consumers",
        "Consumers that gave their name",
        "read",
        answer=_says("Consumers", consumers=list[QueueConsumer]),
    ),
    Operation(
        "post", Q + "/groups", "Adds a group", "write", body=queues.NewGroup, answer=_says("Groups", groups=list[str])
    ),
    Operation("delete", Q + "/groups/{group}", "Forgets a group", "write", answer=_GONE),
    Operation(
        "get", Q + "/schedules", "Periodic messages", "read", answer=_says("Schedules", schedules=list[Schedule])
    ),
    Operation("post", Q + "/schedules", "Adds a periodic message", "write", body=queues.NewSchedule, answer=Schedule),
    Operation("delete", Q + "/schedules/{name}", "Removes a periodic message", "write", answer=_GONE),
    Operation(
        "post",
        Q + "/redrive",
        "Sends dead letters and failed messages back",
        "admin",
        body=queues.Redrive,
        answer=(_says("Redriven", redriven=int), _says("WouldRedrive", would_redrive=int)),
    ),
    Operation(
        "post",
        Q + "/move",
        "Moves messages to another queue",
        "admin",
        body=queues.Move,
        answer=_says("Moved", moved=int),
    ),
    Operation("post", Q + "/purge", "Removes every message", "admin", answer=_REMOVED),
]
"""Everything under /v1."""


@cache
def document() -> bytes:
    """The whole document as JSON."""
    from penstock import __version__

    types = [kind for one in OPERATIONS for said in (one.body, one.answer) for kind in _kinds(said)]
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    by_type = dict(zip(map(str, types), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for one in OPERATIONS:
        paths.setdefault("/v1" + one.path, {})[one.method] = _described(one, by_type)
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "penstock",
                "version": __version__,
                "description": "A journal's topics and queues. Errors are problem+json whose `error` is the error's "
                "name in the Python package. Numbers are positions unless they say otherwise; `after` is exclusive.",
            },
            "paths": paths,
            "components": {
                "schemas": {**components, "Problem": _PROBLEM_SCHEMA},
                "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            },
            "security": [{"token": []}, {}],
        }
    )


_PROBLEM_SCHEMA = {
    "type": "object",
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "error": {"type": "string", "description": "the error's name in penstock.errors, or the server's own"},
    },
    "required": ["type", "title", "status", "detail", "error"],
}


def _kinds(said: Any) -> tuple[Any, ...]:
    """The types a body or an answer may have."""
    return () if said is None else said if isinstance(said, tuple) else (said,)


def _described(one: Operation, by_type: dict[str, Any]) -> dict[str, Any]:
    names = [part[1:-1] for part in one.path.split("/") if part.startswith("{")]
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
    ]
    parameters += [
        {"name": query.name, "in": "query", "description": query.says, "schema": query.schema} for query in one.query
    ]
    kinds = [by_type[str(kind)] for kind in _kinds(one.answer)]
    answer = {} if not kinds else {"schema": kinds[0] if len(kinds) == 1 else {"anyOf": kinds}}
    operation: dict[str, Any] = {
        "summary": one.says,
        "description": f"Needs the role {one.role}.",
        "operationId": f"{one.method} {one.path or '/'}",
        "parameters": parameters,
        "responses": {
            "200": {
                "description": "done",
                "content": {media: answer if media == "application/json" else {} for media in one.media},
            },
            "default": {
                "description": "what went wrong",
                "content": {PROBLEM: {"schema": {"$ref": "#/components/schemas/Problem"}}},
            },
        },
    }
    if one.body is not None:
        operation["requestBody"] = {"content": {"application/json": {"schema": by_type[str(one.body)]}}}
    return operation


async def openapi(request: Request) -> Response:
    """The document; it is the same for everybody and says nothing of the data, so it needs no token."""
    return Response(document(), media_type="application/json")


openapi.open_to_all = True  # type: ignore[attr-defined]
