from __future__ import annotations

import json
import re

from openapi_spec_validator import validate
from starlette.routing import Mount, Route

import penstock
from penstock.server.api.openapi import OPERATIONS, document
from penstock.server.application import make_app
from server.serving import Served


def test_the_document_is_valid_openapi() -> None:
    validate(json.loads(document()))


def test_every_route_is_documented_with_the_role_it_needs_and_nothing_else_is(journal: penstock.Journal) -> None:
    offered = {}
    for route in make_app(journal).routes:
        found = route.routes if isinstance(route, Mount) and route.path == "/v1" else [route]
        for one in found:
            if isinstance(one, Route) and (one is not route or one.path == "/v1"):
                path = "" if one is route else re.sub(r":\w+}", "}", one.path)
                for method in (one.methods or set()) - {"HEAD"}:
                    offered[method.lower(), path] = getattr(one.endpoint, "needs", "read")
    assert offered == {(one.method, one.path): one.role for one in OPERATIONS}


def test_it_is_served(served: Served) -> None:
    answer = served.get("/v1/openapi.json").json
    assert answer["openapi"] == "3.1.0" and "/v1/topics/{topic}/events" in answer["paths"]
