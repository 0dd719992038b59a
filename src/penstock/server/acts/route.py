"""POST /acts/{act}: a form's fields in, a question or what was done out; who did what is in the topic `penstock.audit`.

A record has the kind `console.<act>`, as its key the topic or queue it was about, as its payload an `AuditRecord`. Who
the operator is, a token says: the record has its role and the first characters of its hash, never the token.
"""

from __future__ import annotations

from typing import Final

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from penstock.documents.decoding import decoded
from penstock.errors import ConfigError
from penstock.names import AUDIT
from penstock.server.access import address_of
from penstock.server.acts.act import ActCall
from penstock.server.acts.forms import Value
from penstock.server.acts.table import ACTS
from penstock.server.api import parameters
from penstock.server.problems import Refused
from penstock.server.service import Service, guarded

LONGEST: Final = 500
"""Characters of a field that are written down."""


class ActRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The fields of a form, and whether the act is only to be described."""

    fields: dict[str, Value]
    preview: bool = False


class ActAnswer(msgspec.Struct, omit_defaults=True):
    """The question to ask before the act is done, or what was done."""

    question: str = ""
    danger: bool = False
    """Whether it destroys something."""
    typed: str | None = None
    """What has to be typed before it is done."""
    says: str = ""


class AuditRecord(msgspec.Struct):
    """An act that was done."""

    act: str
    subject: str
    role: str
    who: str
    """`local` where no token is asked for, else the beginning of the token's hash."""
    address: str
    """Where the request came from."""
    fields: dict[str, Value]
    says: str
    """What was done, in words."""


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
    call = ActCall(service.journal, given.fields, service.closing.is_set)
    subject = call.optional(act.subject) or ""
    if not act.on_system:
        service.access.check_change(subject)
    if given.preview:
        question = await run_in_threadpool(lambda: act.plan(call).ask())
        typed = subject if act.danger == "typed" and question else None
        return _answer(ActAnswer(question, bool(act.danger), typed))
    says = await run_in_threadpool(lambda: act.plan(call).do())
    kept = {field: _short(value) for field, value in given.fields.items() if value}
    who, address = service.access.identity(request), address_of(request)
    record = AuditRecord(name, subject[:200], role, who, address, kept, says)
    body: dict[str, object] = msgspec.to_builtins(record)
    audit = service.journal.topic(AUDIT)
    await run_in_threadpool(lambda: audit.append(f"console.{name}", body, key=subject[:200] or None))
    return _answer(ActAnswer(says=says))


def _short(value: Value) -> Value:
    if isinstance(value, str):
        return value if len(value) <= LONGEST else value[:LONGEST] + "…"
    return [one[:80] for one in value[:50]]


def _answer(answer: ActAnswer) -> Response:
    return Response(msgspec.json.encode(answer), media_type="application/json")


def act_routes() -> list[BaseRoute]:
    """The route of all acts."""
    return [Route("/acts/{act}", perform_act, methods=["POST"])]
