"""POST /acts/{act}: a form's fields in, a question or what was done out."""

from __future__ import annotations

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from penstock.documents.decoding import decoded
from penstock.errors import ConfigError
from penstock.server.access import address_of
from penstock.server.acts import messages, queues, topics
from penstock.server.acts.act import ACTS, ActCall, Value
from penstock.server.acts.audit import write_down
from penstock.server.api import parameters
from penstock.server.problems import Refused
from penstock.server.service import Service, guarded

REGISTERED = (messages, queues, topics)
"""Importing them fills ACTS."""


class ActRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The fields of a form, and whether the act is only to be described."""

    fields: dict[str, Value]
    preview: bool = False


class ActAnswer(msgspec.Struct, omit_defaults=True):
    """The question to ask before the act is done, or what was done."""

    question: str = ""
    says: str = ""


@guarded("write")
async def perform_act(request: Request, service: Service) -> Response:
    name = request.path_params["act"]
    act = ACTS.get(name)
    if act is None:
        raise Refused(404, "UnknownAct", f"the console cannot {name[:40]!r}")
    role = service.access.require(request, act.role)
    data = await parameters.form(request, service)
    given = decoded(data, msgspec.json.Decoder(ActRequest).decode, ActRequest)
    unknown = set(given.fields) - act.fields
    if unknown:
        raise ConfigError(f"{name} has no field {sorted(unknown)[0]!r}; there are {', '.join(sorted(act.fields))}")
    call = ActCall(service.journal, given.fields, given.preview, service.closing.is_set)
    if act.subject in ("topic", "queue") and not act.on_system:
        service.access.check_change(call.optional(act.subject) or "")
    said = await run_in_threadpool(act.perform, call)
    if given.preview:
        return _answer(ActAnswer(question=said))
    who = service.access.identity(request)
    address = address_of(request)
    await run_in_threadpool(
        lambda: write_down(service.journal, act, given.fields, said, role=role, who=who, address=address)
    )
    return _answer(ActAnswer(says=said))


def _answer(answer: ActAnswer) -> Response:
    return Response(msgspec.json.encode(answer), media_type="application/json")


def act_routes() -> list[BaseRoute]:
    """The route of all acts."""
    return [Route("/acts/{act}", perform_act, methods=["POST"])]
