"""A queue's page: what is in which state over time, who holds what, what was given up, and how to send it back."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import Response

from penstock.observe.sample import FailedMessage, QueueSample, Sample
from penstock.server.api.queues import groups_of, policy_document, queue_of
from penstock.server.api.stats import sse
from penstock.server.held import failures, letters
from penstock.server.pages import parts
from penstock.server.pages.html import Html, el
from penstock.server.pages.parts import Row, Table, Update
from penstock.server.pages.topic import event_item, preview
from penstock.server.service import Service, guarded

if TYPE_CHECKING:
    from penstock.queue.queue import Queue

SHOWN = 50
"""Messages of each sort that a page shows, however many there are."""
STATES = ("Ready", "In flight", "Delayed", "Failed")


def _group(request: Request, queue: Queue) -> str:
    groups = groups_of(queue)
    wanted = request.query_params.get("group") or groups[0]
    return wanted if wanted in groups else groups[0]


def _found(sample: Sample, name: str, group: str) -> QueueSample | None:
    return next((one for one in sample.queues.get(name, ()) if one.group == group), None)


def _numbers(sample: Sample, name: str, group: str) -> dict[str, tuple[str, str, bool]]:
    found = _found(sample, name, group) or QueueSample(name, group, 0, 0, 0, 0, None)
    return {
        "ready": ("Ready", parts.number(found.ready), False),
        "in-flight": ("In flight", parts.number(found.in_flight), False),
        "delayed": ("Delayed", parts.number(found.delayed), False),
        "failed": ("Failed", parts.number(found.failed), found.failed > 0),
        "oldest": ("Oldest ready", parts.age(found.oldest_age), False),
        "rate": ("Pushed a second", parts.rate(found.rate), False),
    }


def pending_table(queue: Queue, group: str) -> Table:
    rows = []
    for held in islice(queue.pending(group if queue.policy.mode == "fanout" else None), SHOWN):
        cells = [f"#{held.seq}", held.consumer or "–", held.group, parts.number(held.attempt)]
        cells += [_clock(held.delivered_at), _clock(held.deadline)]
        rows.append(Row(held.token, cells))
    columns = ["Message", "Holder", "Group", "Attempt", "Delivered", "Deadline"]
    return Table("pending", columns, rows, [3], "nothing is in flight")


def _clock(moment: object) -> str:
    """A time as the script will show it."""
    return moment.isoformat(timespec="milliseconds")  # type: ignore[attr-defined, no-any-return]


def _chart(service: Service, name: str, group: str) -> tuple[list[str], str]:
    history = service.sampler.queue_history(name, group)
    series = [[(point[0], float(point[at])) for point in history] for at in range(1, 5)]
    drawn, top = parts.lines(series)
    return drawn, parts.number(top)


# ── what was given up ────────────────────────────────────────────────────────────────────────────────────────────────
def given_up(id: str, found: list[FailedMessage], base: str, *, choose: bool) -> Html:
    """Failed messages or dead letters, with the reason; each can be chosen when something may be done about it."""
    rows = []
    for failure in found:
        event = failure.event
        box = el("input", type="checkbox", name="id", value=event.id, aria_label=f"choose message {event.seq}")
        rows.append(
            el(
                "tr",
                el("td", box) if choose else None,
                el("td", el("a", f"#{event.seq}", href=f"{base}/topics/{quote(event.topic)}/events/{event.seq}")),
                el("td", failure.queue),
                el("td", parts.number(failure.attempts), class_="number"),
                el("td", failure.reason),
                el("td", failure.error or "–", class_="error"),
                el("td", parts.moment(failure.at)),
                el("td", el("code", preview(event), class_="payload")),
            )
        )
    every = el("input", type="checkbox", id=f"{id}-all", aria_label="choose all that are shown")
    heads = ["Message", "Queue", "Attempts", "Reason", "Error", "At", "Payload"]
    head = el("tr", el("th", every) if choose else None, *(el("th", name, scope="col") for name in heads))
    return el("table", el("thead", head), el("tbody", *rows), id=id)


def _repair(request: Request, queue: str, id: str, found: list[FailedMessage], what: str) -> Html:
    """A table of what was given up with the buttons that send it back."""
    base = parts.base_of(request)
    allowed = parts.can(request, "admin")
    if not found:
        return el("p", f"no {what}", class_="empty")
    return el(
        "form",
        given_up(id, found, base, choose=allowed),
        el("p", f"The first {SHOWN} are shown.", class_="note") if len(found) >= SHOWN else None,
        el(
            "p",
            el("button", "Send chosen back", type="submit", name="scope", value="chosen"),
            el("button", "Send all back", type="submit", name="scope", value="all", class_="plain"),
            class_="row",
        )
        if allowed
        else None,
        class_="redrive",
        data_queue=queue,
        data_what=what,
    )


@guarded("read")
def queue_page(request: Request, service: Service) -> Response:
    queue = queue_of(request, service)
    group = _group(request, queue)
    service.sampler.start()
    sample = service.sampler.newest
    base = parts.base_of(request)
    drawn, top = _chart(service, queue.name, group)
    failed = list(islice(failures(queue, group), SHOWN))
    dead = list(islice(letters(service.journal, queue.name), SHOWN))
    return parts.page(
        request,
        service,
        queue.name,
        _tabs(queue, group),
        parts.tiles(
            *(
                parts.tile(id, said[0], said[1], alert=said[2])
                for id, said in _numbers(sample, queue.name, group).items()
            )
        ),
        parts.chart("states", "Messages by state", STATES, drawn, top),
        parts.section("Dead letters", _repair(request, queue.name, "dead", dead, "dead letters")),
        parts.section("Failed", _repair(request, queue.name, "failed-messages", failed, "failed messages")),
        parts.section("In flight", pending_table(queue, group).html()),
        parts.section(
            "Next",
            el("ol", *(event_item(event, base) for event in queue.peek(10, group=group)), class_="events"),
            el("p", el("a", "All of its events", href=f"{base}/topics/{quote(queue.name)}"), class_="pager"),
        ),
        parts.section("Policy", _policy(queue), _purge(request, queue)),
        live=f"/live/queues/{quote(queue.name)}?{urlencode({'group': group})}",
    )


def _tabs(queue: Queue, group: str) -> Html | None:
    groups = groups_of(queue)
    if len(groups) == 1:
        return None
    links = [
        el("a", name, href="?" + urlencode({"group": name}), aria_current="page" if name == group else None)
        for name in groups
    ]
    return el("nav", *links, class_="tabs", aria_label="Groups")


def _policy(queue: Queue) -> Html:
    rows = []
    for name, value in policy_document(queue.policy).items():
        shown = str(queue.policy.retry) if name == "retry" else "–" if value is None else str(value)
        rows.append(el("tr", el("th", name.replace("_", " "), scope="row"), el("td", shown)))
    return el("table", el("tbody", *rows), class_="fields")


def _purge(request: Request, queue: Queue) -> Html | None:
    if not parts.can(request, "admin"):
        return None
    return el(
        "form",
        el("button", "Remove every message", type="submit", class_="danger"),
        id="purge",
        data_queue=queue.name,
    )


@guarded("read")
async def live_queue(request: Request, service: Service) -> Response:
    name = request.path_params["queue"]
    queue = queue_of(request, service)
    group = _group(request, queue)

    def render(sample: Sample) -> Update:
        said = _numbers(sample, name, group)
        drawn, top = _chart(service, name, group)
        return Update(
            {"states-top": top, **{id: value for id, (_, value, _) in said.items()}},
            {"pending": pending_table(queue, group).rows},
            {"states": drawn},
            {id: alert for id, (_, _, alert) in said.items()},
        )

    return sse(service, render)
