"""A queue's page: what is in which state over time, who holds what, what was given up, and how to send it back."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from penstock.observe.sample import QueueSample, Sample
from penstock.queue.inspect import (
    STATES,
    PendingDelivery,
    QueueConsumer,
    QueueMessage,
    check_state,
    dead_letters,
    failures,
)
from penstock.queue.letters import DeadLetterCursor
from penstock.server.acts.policy import policy_form, policy_words
from penstock.server.api.queues import groups_of, queue_of
from penstock.server.pages import charts, lists, parts, rendering, schedules
from penstock.server.pages.lists import ListColumn, Listing
from penstock.server.pages.overview import STATE_COLUMNS, queue_row
from penstock.server.pages.parts import ActButton, Row, Table, Tile, Update
from penstock.server.service import Service, guarded

if TYPE_CHECKING:
    from penstock.surface.queue import Queue

SHOWN = lists.ROWS
SHOWN_GROUPS = 8
"""Groups that have a tab of their own; of more there is a table."""


def _group(request: Request, queue: Queue) -> str:
    groups = groups_of(queue)
    wanted = request.query_params.get("group") or groups[0]
    return wanted if wanted in groups else groups[0]


def _position(text: str) -> int:
    place = DeadLetterCursor.read(text)
    return 0 if place is None else place.seq


def _found(sample: Sample, name: str, group: str) -> QueueSample | None:
    return next((one for one in sample.queues.get(name, ()) if one.group == group), None)


def tiles(sample: Sample, name: str, group: str) -> list[Tile]:
    """The messages of a group, by state."""
    found = _found(sample, name, group) or QueueSample(name, group, 0, 0, 0, 0, None)
    if found.letters is None:
        first = Tile("ready", "Ready", parts.number(found.ready))
        dead = Tile("dead-count", "Dead letters", parts.number(found.dead), found.dead > 0)
    else:
        # Its messages are other queues' dead letters: no consumer is behind with them.
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


def _clock(moment: datetime) -> str:
    """A time as the script will show it."""
    return moment.isoformat(timespec="milliseconds")


PENDING_COLUMNS: tuple[ListColumn[PendingDelivery], ...] = (
    ListColumn("Message", "message", lambda held: f"#{held.seq}", lambda held: held.seq),
    ListColumn("Holder", "holder", lambda held: held.consumer or "–"),
    ListColumn("Group", "group", lambda held: held.group),
    ListColumn("Attempt", "attempt", lambda held: parts.number(held.attempt), lambda held: held.attempt),
    ListColumn("Delivered", "delivered", lambda held: _clock(held.delivered_at)),
    ListColumn("Deadline", "deadline", lambda held: _clock(held.deadline)),
)
WORKER_COLUMNS: tuple[ListColumn[QueueConsumer], ...] = (
    ListColumn("Worker", "worker", lambda one: one.name),
    ListColumn("Group", "group", lambda one: one.group),
    ListColumn("Host", "host", lambda one: one.host or "–"),
    ListColumn("State", "state", lambda one: one.state),
    ListColumn("Since", "since", lambda one: "–" if one.since is None else _clock(one.since)),
    ListColumn("Last seen", "seen", lambda one: _clock(one.last_seen)),
    ListColumn("In hand", "hand", lambda one: in_hand_words(one)),
)
GROUP_COLUMNS = (ListColumn[QueueSample]("Group", "group", lambda one: one.group), *STATE_COLUMNS)


class QueueRows:
    """Which messages in flight, workers and groups of a queue a request asks for."""

    def __init__(self, request: Request, queue: Queue, group: str) -> None:
        self.queue = queue
        self.group = group
        base, may_write = rendering.base_of(request), rendering.can(request, "write")
        self._may_write, self._may_admin = may_write, rendering.can(request, "admin")
        empty = "nothing is in flight"
        self._pending = Listing(
            request, "pending", PENDING_COLUMNS, self._held, usual="-message", empty=empty, has_buttons=may_write
        )
        empty = "no worker is there: penstock work, or queue.worker(handler)"
        self._workers = Listing(request, "workers", WORKER_COLUMNS, _worker_row, usual="-seen", empty=empty)
        self._groups = Listing(
            request,
            "groups",
            GROUP_COLUMNS,
            lambda one, cells: queue_row(one, cells, base),
            usual="group",
            empty="no group is there",
        )

    def _held(self, held: PendingDelivery, cells: list[str]) -> Row:
        fields = {"queue": self.queue.name, "token": held.token}
        buttons = [ActButton("Release", "release", fields)] if self._may_write else []
        if self._may_admin:
            buttons.append(ActButton("Done", "settle", {**fields, "outcome": "done"}))
            buttons.append(ActButton("Give up", "settle", {**fields, "outcome": "dead"}))
        return Row(held.token, cells, buttons=buttons)

    def pending(self) -> Table:
        """Messages in flight, with what can be done about each."""
        return self._pending.table(self.queue.pending(self.group if self.queue.policy.mode == "fanout" else None))

    def workers(self) -> Table:
        """Workers, and other consumers that gave their name: where, since when, their last sign of life, what they
        hold."""
        return self._workers.table(self.queue.consumers())

    def groups(self, sample: Sample) -> Table:
        """The groups of a queue in fanout mode, each with a page of its own."""
        return self._groups.table(sample.queues.get(self.queue.name, ()))


def _worker_row(one: QueueConsumer, cells: list[str]) -> Row:
    return Row(f"{one.group}/{one.name}", cells, None, one.state == "gone" and one.in_hand > 0)


@guarded("read")
def queue_page(request: Request, service: Service) -> Response:
    queue = queue_of(request, service)
    group = _group(request, queue)
    service.sampler.start()
    sample = service.sampler.newest
    rows = QueueRows(request, queue, group)
    holds_dead = is_dead_letter_queue(sample, queue.name)
    backend = service.journal._backend.queue(queue.name)
    return rendering.page(
        request,
        service,
        "queue.html",
        queue.name,
        live=f"/live/queues/{rendering.segment(queue.name)}?{urlencode({**request.query_params, 'group': group})}",
        kind="Dead-letter queue" if holds_dead else "Queue",
        is_dead_letter_queue=holds_dead,
        queue=queue,
        group=group,
        groups=groups_of(queue),
        group_table=rows.groups(sample),
        shown_groups=SHOWN_GROUPS,
        tiles=tiles(sample, queue.name, group),
        charts=charts.QUEUE,
        dead=lists.turned(request, "dead", lambda text: dead_letters(backend, DeadLetterCursor.read(text))),
        failed=lists.turned(request, "failed", lambda text: failures(backend, group, _position(text))),
        pending=rows.pending(),
        next=queue.peek(10, group=group),
        policy=policy_words(queue.policy),
        consumers=rows.workers(),
        schedules=schedules.listing(request).table(queue.schedules()),
        policy_form=policy_form(queue.policy),
        templates=[event for event in queue.peek(5, group=group) if not event.binary],
        has_groups=queue.policy.mode == "fanout",
        pauses=queue.pauses(),
        states=MESSAGE_STATES,
    )


# ── the messages by state ────────────────────────────────────────────────────────────────────────────────────────────
MESSAGE_STATES = (("", "all"), *((state, state.replace("_", " ")) for state in STATES))


@guarded("read")
def messages_page(request: Request, service: Service) -> Response:
    """The messages of a queue that are not settled, by state, a page at a time."""
    queue = queue_of(request, service)
    query = request.query_params
    state = check_state(query.get("state") or None)
    text = query.get("after", "0")
    after = int(text) if text.isdecimal() and len(text) <= 18 else 0
    found = queue.messages(state, group=query.get("group") or None, after=after, limit=SHOWN + 1)
    seqs = sorted({one.seq for one in found})
    shown = [one for one in found if one.seq in set(seqs[:SHOWN])]
    base = rendering.base_of(request)
    older = {**query, "after": str(shown[-1].seq)} if len(seqs) > SHOWN else None
    return rendering.page(
        request,
        service,
        "messages.html",
        queue.name,
        live="/live/health",
        kind="Messages of a queue",
        queue=queue,
        state=state or "",
        states=MESSAGE_STATES,
        messages=message_table(queue, shown, base, **rendering.allowed(request)),
        following=None if older is None else urlencode(older),
        delayed=state == "delayed" and bool(shown),
    )


def message_table(queue: Queue, found: list[QueueMessage], base: str, *, may_write: bool, may_admin: bool) -> Table:
    """Messages with their state, and what can be done about each."""
    rows = []
    for one in found:
        attempts = f"{one.attempts} of {one.max_attempts}"
        until = one.due or one.deadline
        cells = [f"#{one.seq}", one.state.replace("_", " "), one.group or "–", attempts]
        cells += ["–" if until is None else _clock(until), str(one.priority), one.key or "–"]
        cells += [(one.error or one.consumer or "–").partition("\n")[0], parts.preview(one.event)]
        buttons = []
        fields = {"queue": queue.name, "seq": str(one.seq)}
        if may_admin and one.state == "delayed":
            buttons.append(ActButton("Run now", "run-now", fields | ({"group": one.group} if one.group else {})))
        if may_admin and one.state != "in_flight":
            buttons.append(ActButton("Delete", "delete-message", fields))
        href = f"{base}/topics/{rendering.segment(queue.name)}/events/{one.seq}"
        rows.append(Row(f"{one.group}/{one.seq}", cells, href, one.state == "failed", buttons))
    columns = ["Message", "State", "Group", "Attempts", "Due or until", "Priority", "Key", "Error or holder", "Payload"]
    return Table("messages", columns, rows, [], "no message is in this state", has_buttons=may_admin, opens=True)


def is_dead_letter_queue(sample: Sample, name: str) -> bool:
    return any(group.letters is not None for group in sample.queues.get(name, ()))


def in_hand_words(one: QueueConsumer) -> str:
    """What a consumer holds, by position."""
    if not one.in_hand:
        return "nothing"
    shown = ", ".join(f"#{seq}" for seq in one.holds[:3])
    return shown if one.in_hand <= 3 else f"{shown} and {one.in_hand - 3:,} more"


@guarded("read")
async def live_queue(request: Request, service: Service) -> Response:
    name = request.path_params["queue"]
    queue = queue_of(request, service)
    group = _group(request, queue)
    rows = QueueRows(request, queue, group)

    def render(sample: Sample) -> Update:
        return parts.update(tiles(sample, name, group), rows.pending(), rows.workers(), rows.groups(sample))

    return rendering.stream(request, service, render)
