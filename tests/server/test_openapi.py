from __future__ import annotations

import json
import re

from openapi_spec_validator import validate
from starlette.routing import Route

import penstock
from penstock.core.local import bulk as local_bulk
from penstock.core.local import queues as local_queues
from penstock.core.local import topics as local_topics
from penstock.core.protocol.openapi import OPERATIONS, document
from penstock.server.api import bulk, topics
from penstock.server.application import make_app
from penstock.transfer import committing
from server.serving import Served


def test_the_document_is_valid_openapi() -> None:
    validate(json.loads(document()))


def test_what_is_served_under_v1_is_the_table_and_nothing_else(journal: penstock.Journal) -> None:
    offered = {}
    for route in make_app(journal).routes:
        if isinstance(route, Route) and route.path.startswith("/v1"):
            path = re.sub(r":\w+}", "}", route.path).removeprefix("/v1")
            for method in (route.methods or set()) - {"HEAD"}:
                offered[method, path] = route.endpoint.needs  # type: ignore[attr-defined]
    assert offered == {(one.method, one.path): one.role for one in OPERATIONS}


def test_names_of_operations_are_words_and_stand_once() -> None:
    names = [one.name for one in OPERATIONS]
    assert len(set(names)) == len(names) and all(re.fullmatch("[a-z_]+", name) for name in names)
    said = json.loads(document())["paths"]
    assert {one["operationId"] for path in said.values() for one in path.values()} == set(names)


def test_what_runs_for_an_operation_is_written_where_it_is_looked_for() -> None:
    """It is found by its name: a function that a module only imports must not be taken for it."""
    for operation in OPERATIONS:
        name, found = operation.name, []
        for module in (bulk, topics, local_bulk, local_queues, local_topics, committing):
            if name in vars(module):
                found.append(vars(module)[name].__module__ == module.__name__)
        assert found and all(found), name


def test_every_success_has_the_status_that_is_declared() -> None:
    said = json.loads(document())["paths"]
    for one in OPERATIONS:
        responses = said["/v1" + one.path][one.method.lower()]["responses"]
        assert str(one.status) in responses
        assert not [status for status in responses if status.startswith("2") and status != str(one.status)]


def test_it_is_served_and_so_is_all_that_its_page_shows_it_with(served: Served) -> None:
    answer = served.get("/v1/openapi.json").json
    assert answer["openapi"] == "3.1.0" and "/v1/topics/{topic}/events" in answer["paths"]
    parts = re.findall(r'(?:src|href)="([^"]+)"', served.get("/docs").data.decode())
    assert "/v1/openapi.json" in parts and "#schema-DraftDocument" in parts
    for part in (part for part in parts if not part.startswith("#")):
        assert served.get(part).status == 200, part
