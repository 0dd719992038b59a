"""The pages of errors: an unknown address, or a refused request."""

from __future__ import annotations

from contextlib import suppress
from difflib import get_close_matches
from itertools import islice
from typing import Final
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import HTMLResponse

from penstock.core.queue.inspect import newest_dead
from penstock.errors import PenstockError
from penstock.server.pages.failures import GROUPED
from penstock.server.pages.parts import Content, HealthLink, bare_page, base_of, page, segment
from penstock.server.service import Service

HEADINGS: Final = {
    400: "That cannot be done as asked",
    403: "Not allowed",
    404: "Not found",
    405: "That cannot be done here",
    409: "That does not fit what is there",
    410: "No longer there",
    413: "Too large",
    421: "Another server's name",
    503: "Too busy just now",
}
"""The error in plain words, by status. Programs read the error's name instead."""


def problem_page(request: Request, status: int, message: str) -> HTMLResponse:
    """Returns the page of an error. It has the navigation if the person is logged in and the journal answers."""
    heading = HEADINGS.get(status, "That did not work" if status < 500 else "The server failed")
    message = message[:1].upper() + message[1:]
    service: Service = request.app.state.service
    role = service.access.role(request) if status < 500 and status != 421 else None
    if role is None:
        return bare_page(request, "problem_bare.html", {"title": heading, "message": message}, status)
    request.state.role = role
    values: dict[str, object] = {"message": message, "near": [], "sought": ""}
    if status == 404:
        heading, values = _missing(request, service)
    content = Content("problem.html", heading, values=lambda: values)
    return page(request, service, content, status=status)


def _missing(request: Request, service: Service) -> tuple[str, dict[str, object]]:
    """Returns a heading and values that say what is missing, and which address the person may have meant."""
    base, sample = base_of(request), service.sampler.newest
    parts_of_path = [unquote(part) for part in request.url.path.removeprefix(base).strip("/").split("/")]
    kind, name = parts_of_path[0], parts_of_path[1] if len(parts_of_path) > 1 else ""
    if kind == "topics" and len(parts_of_path) > 3:
        heading = f"There is no event {parts_of_path[3]} in {name}"
        why = "It may have been removed since, by the topic's retention or by hand; or it was never there."
        near = [HealthLink(f"The events of {name}", f"{base}/topics/{segment(name)}", "")]
        with suppress(PenstockError):  # no queue has that name
            dead = islice(newest_dead(service.journal.backend.queue(name)), GROUPED)
            for one in (found.event for found in dead if found.event.headers.get("dead-seq") == parts_of_path[3]):
                href = f"{base}/topics/{segment(one.topic)}/events/{one.seq}"
                near.insert(0, HealthLink(f"Its dead letter, {one.topic} #{one.seq}", href, "alert"))
        return heading, {"message": why, "near": near, "sought": parts_of_path[3]}
    if kind in ("topics", "queues") and name:
        links = {f"{base}/topics/{segment(one)}": one for one in sample.topics if one not in sample.queues}
        links |= {f"{base}/queues/{segment(one)}": one for one in sample.queues}
        found = [
            one for close in get_close_matches(name, links.values(), 3) for one in links.items() if one[1] == close
        ]
        near = [HealthLink(f"{'Queue' if '/queues/' in href else 'Topic'} {one}", href, "") for href, one in found]
        why = f"No {kind[:-1]} of this journal has that name. It may be written differently, or was dropped."
        return f"There is no {kind[:-1]} {name}", {"message": why, "near": near, "sought": name}
    why = f"Nothing is at {request.url.path}: the address may be mistyped, or a link to it may be old."
    return "There is no such page", {
        "message": why,
        "near": [],
        "sought": "" if kind in ("", "graph") else name or kind,
    }
