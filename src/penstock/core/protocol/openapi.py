"""The table of all operations, and the OpenAPI 3.1 document of `/v1/openapi.json`."""

from __future__ import annotations

import re
from functools import cache

import msgspec

from penstock.core.protocol import bulk, queues, topics
from penstock.core.protocol.operation import JSON, PREFIX, PROBLEM, Operation
from penstock.core.protocol.problems import Problem, status_of
from penstock.errors import Backpressure, ConfigError, PenstockError, ReadOnly, StorageError

_Json = dict[str, object]

OPERATIONS = (*topics.OPERATIONS, *queues.OPERATIONS, *bulk.OPERATIONS)

ALWAYS: tuple[type[PenstockError], ...] = (ConfigError, ReadOnly, Backpressure, StorageError)
"""The errors that any operation may return."""


@cache
def document() -> bytes:
    """Returns the whole document as JSON."""
    from penstock import __version__

    kinds = [kind for one in OPERATIONS for kind in _kinds(one)]
    schemas, components = msgspec.json.schema_components([*kinds, Problem], ref_template="#/components/schemas/{name}")
    by_kind = dict(zip(map(str, kinds), schemas, strict=False))
    paths: dict[str, dict[str, object]] = {}
    for one in OPERATIONS:
        paths.setdefault(PREFIX + one.path, {})[one.method.lower()] = _described(one, by_kind)
    written = msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "penstock",
                "version": __version__,
                "description": "A journal's topics and queues. Errors are problem+json whose `error` is the error's "
                "name in the Python package. Numbers are positions unless they say otherwise; `after` is exclusive. "
                "Unknown fields and query parameters are refused.",
            },
            "paths": paths,
            "components": {
                "schemas": components,
                "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            },
            "security": [{"token": []}, {}],
        }
    )
    # A page of documents is named after the page: MessagePage, not MessagePage_MessageDocument_.
    return re.sub(rb"(\w+?)(?:_\w+Document_\b|\[\w+Document\])", rb"\1", written)


def _kinds(one: Operation[object]) -> list[object]:
    """Returns the types that an operation sends or receives as JSON."""
    body = one.body if one.takes == JSON else None
    return [kind for kind in (body, one.wire_answer, *one.also) if kind not in (None, bytes)]


def _described(one: Operation[object], by_kind: dict[str, _Json]) -> _Json:
    answers = [by_kind[str(kind)] for kind in one.also]
    if one.wire_answer is not bytes:
        whole = by_kind[str(one.wire_answer)]
        held: _Json = {"type": "object", "properties": {one.field: whole}, "required": [one.field]}
        answers.append(held if one.field else whole)
    answer = {"schema": answers[0] if len(answers) == 1 else {"anyOf": answers}} if answers else {}
    described: _Json = {
        "operationId": one.name,
        "summary": one.summary,
        "description": "Needs no token." if one.role is None else f"Needs the role {one.role}.",
        "parameters": [*_path_parameters(one), *_query_parameters(one)],
        "responses": {
            str(one.status): {
                "description": "done",
                "content": {media: answer if media == JSON else {} for media in one.media},
            },
            **_failures(one),
        },
    }
    if one.role is None:
        described["security"] = [{}]
    if one.body is not None:
        content = {"schema": by_kind[str(one.body)]} if one.takes == JSON else {}
        described["requestBody"] = {"content": {one.takes: content}}
    return described


def _path_parameters(one: Operation[object]) -> list[_Json]:
    return [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in one.names]


def _query_parameters(one: Operation[object]) -> list[_Json]:
    if one.query is None:
        return []
    (schema,), components = msgspec.json.schema_components([one.query], ref_template="{name}")
    properties: dict[str, dict[str, object]] = components[schema["$ref"]]["properties"]
    return [
        {"name": name, "in": "query", "description": said.pop("description", ""), "schema": said}
        for name, said in properties.items()
    ]


def _failures(one: Operation[object]) -> _Json:
    """Returns the failures of an operation, by status; other failures are `default`."""
    content = {PROBLEM: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    by_status: dict[int, list[str]] = {}
    for kind in (*one.errors, *ALWAYS):
        by_status.setdefault(status_of(kind), []).append(kind.__name__)
    if one.missing is not None:
        by_status.setdefault(404, []).append(one.missing)
    found = {
        str(status): {"description": " or ".join(names), "content": content} for status, names in by_status.items()
    }
    return {**dict(sorted(found.items())), "default": {"description": "what went wrong", "content": content}}
