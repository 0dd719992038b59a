"""The HTTP API, to read: every operation of the OpenAPI document in its group, then the shapes of what is sent."""

from __future__ import annotations

from functools import cache

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock.protocol import bulk, deliveries, journal, messages, queues, topics
from penstock.protocol.openapi import document
from penstock.protocol.operation import PREFIX, Operation
from penstock.server.pages import rendering
from penstock.server.pages.rendering import Content
from penstock.server.service import Service, guarded

GROUPS = (
    ("Journal", journal.OPERATIONS),
    ("Topics", topics.OPERATIONS),
    ("Queues", queues.OPERATIONS),
    ("Messages", messages.OPERATIONS),
    ("Deliveries", deliveries.OPERATIONS),
    ("Bulk", bulk.OPERATIONS),
)


class ApiDocument(msgspec.Struct):
    """What the page shows of the OpenAPI document."""

    paths: dict[str, dict[str, object]]
    components: dict[str, dict[str, object]]


_read = cache(msgspec.json.Decoder(ApiDocument).decode)


def _described(said: ApiDocument, one: Operation[object]) -> tuple[str, str, object]:
    """An operation's method, its path, and what the document says of it."""
    path = PREFIX + one.path
    return one.method, path, said.paths[path][one.method.lower()]


@guarded("read")
def api_page(request: Request, service: Service) -> Response:
    said = _read(document())
    groups = [(name, [_described(said, one) for one in found]) for name, found in GROUPS]
    values: dict[str, object] = {"groups": groups, "schemas": said.components["schemas"]}
    return rendering.page(request, service, Content("api.html", "API", values=lambda: values))
