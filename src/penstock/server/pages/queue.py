"""A queue's page: what is in which state over time, who holds what, what was given up, and how to send it back."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import Response

from penstock.observe.sample import QueueSample, Sample
from penstock.server.api.queues import groups_of, policy_document, queue_of
from penstock.server.pages import charts, parts, rendering
from penstock.server.pages.parts import Row, Table, Tile, Update
from penstock.server.service import Service, guarded

if TYPE_CHECKING:
    from penstock.queue.queue import LocalQueue

SHOWN = 50
"""Messages of each sort that a page shows, however many there are."""


def _group(request: Request, queue: LocalQueue) -> str:
    groups = groups_of(queue)
    wanted = request.query_params.get("group") or groups[0]
    return wanted if wanted in groups else groups[0]


def _found(sample: Sample, name: str, group: str) -> QueueSample | None:
    return next((one for one in sample.queues.get(name, ()) if one.group == group), None)


def tiles(sample: Sample, name: str, group: str) -> list[Tile]:
    """The messages of a group, by state."""
    found = _found(sample, name, group) or QueueSample(name, group, 0, 0, 0, 0, None)
    if found.letters is None:
        first = Tile("ready", "Ready", parts.number(found.ready))
        dead = Tile("dead-count", "Dead letters", parts.number(found.dead), found.dead > 0)
    else:
        # Its messages are other queues' dead letters: nobody is behind with them.
        first = Tile("ready", "Dead letters here", parts.number(found.letters), found.letters > 0)
        dead = Tile("dead-count", "Dead letters of its own", parts.number(found.dead), found.dead > 0)
    return [
        first,
        Tile("in-flight", "In flight", parts.number(found.in_flight)),
        Tile("delayed", "Delayed", parts.number(found.delayed)),
        Tile("failed", "Failed", parts.number(found.failed), found.failed > 0),
        dead,
        Tile("oldest", "Oldest ready", parts.age(found.oldest_age)),
        Tile("rate", "Pushed a second", parts.rate(found.rate)),
    ]


def pending_table(queue: LocalQueue, group: str) -> Table:
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


@guarded("read")
def queue_page(request: Request, service: Service) -> Response:
    queue = queue_of(request, service)
    group = _group(request, queue)
    service.sampler.start()
    return rendering.page(
        request,
        service,
        "queue.html",
        queue.name,
        live=f"/live/queues/{quote(queue.name)}?{urlencode({'group': group})}",
        queue=queue,
        group=group,
        groups=groups_of(queue),
        tiles=tiles(service.sampler.newest, queue.name, group),
        charts=charts.QUEUE,
        dead=list(islice(queue.dead_letters(), SHOWN)),
        failed=list(islice(queue.failures(group), SHOWN)),
        shown=SHOWN,
        pending=pending_table(queue, group),
        next=queue.peek(10, group=group),
        policy=_policy(queue),
    )


def _policy(queue: LocalQueue) -> list[tuple[str, str]]:
    rows = []
    for name, value in policy_document(queue.policy).items():
        shown = str(queue.policy.retry) if name == "retry" else "–" if value is None else str(value)
        rows.append((name.replace("_", " "), shown))
    return rows


@guarded("read")
async def live_queue(request: Request, service: Service) -> Response:
    name = request.path_params["queue"]
    queue = queue_of(request, service)
    group = _group(request, queue)

    def render(sample: Sample) -> Update:
        return parts.update(tiles(sample, name, group), pending_table(queue, group))

    return rendering.stream(request, service, render)
