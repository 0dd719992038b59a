"""A queue's page: its messages by state over time, what was given up and how to send it back, workers, schedules, and
the policy; a tab each."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from urllib.parse import urlencode

from starlette.requests import Request

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
from penstock.server.acts.policy import policy_form
from penstock.server.api.queues import groups_of, queue_of
from penstock.server.pages import charts, lists, parts, rendering, schedules
from penstock.server.pages.lists import ListColumn, Listing
from penstock.server.pages.overview import STATE_COLUMNS, queue_row
from penstock.server.pages.parts import ActButton, Row, Table, Tile
from penstock.server.pages.rendering import Content
from penstock.server.service import Service

SHOWN = lists.ROWS
SHOWN_GROUPS = 8
"""Groups that have a link of their own; of more there is a table."""
MESSAGE_STATES = (("", "all"), *((state, state.replace("_", " ")) for state in STATES))


def _found(sample: Sample, name: str, group: str) -> QueueSample:
    found = (one for one in sample.queues.get(name, ()) if one.group == group)
    return next(found, QueueSample(name, group, 0, 0, 0, 0, None))


def tiles(found: QueueSample) -> list[Tile]:
    """The messages of a group, by state."""
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


def _clock(moment: datetime | None) -> str:
    """A time as the script will show it."""
    return "–" if moment is None else moment.isoformat(timespec="milliseconds")


def _until(one: QueueMessage) -> str:
    return _clock(one.due or one.deadline)


PENDING_COLUMNS: tuple[ListColumn[PendingDelivery], ...] = (
    ListColumn("Message", "message", lambda held: f"#{held.seq}", lambda held: held.seq),
    ListColumn("Holder", "holder", lambda held: held.consumer or "–"),
    ListColumn("Group", "group", lambda held: held.group, minor=True),
    ListColumn("Attempt", "attempt", lambda held: parts.number(held.attempt), lambda held: held.attempt),
    ListColumn("Delivered", "delivered", lambda held: _clock(held.delivered_at), minor=True),
    ListColumn("Deadline", "deadline", lambda held: _clock(held.deadline)),
)
WORKER_COLUMNS: tuple[ListColumn[QueueConsumer], ...] = (
    ListColumn("Worker", "worker", lambda one: one.name),
    ListColumn("Group", "group", lambda one: one.group, minor=True),
    ListColumn("Host", "host", lambda one: one.host or "–", minor=True),
    ListColumn("State", "state", lambda one: one.state),
    ListColumn("Since", "since", lambda one: _clock(one.since), minor=True),
    ListColumn("Last seen", "seen", lambda one: _clock(one.last_seen)),
    ListColumn("In hand", "hand", lambda one: in_hand_words(one)),
)
GROUP_COLUMNS = (ListColumn[QueueSample]("Group", "group", lambda one: one.group), *STATE_COLUMNS)
MESSAGE_COLUMNS: dict[str, Callable[[QueueMessage], str]] = {
    "Message": lambda one: f"#{one.seq}",
    "State": lambda one: one.state.replace("_", " "),
    "Group": lambda one: one.group or "–",
    "Attempts": lambda one: f"{one.attempts} of {one.max_attempts}",
    "Due or until": _until,
    "Priority": lambda one: str(one.priority),
    "Key": lambda one: one.key or "–",
    "Error or holder": lambda one: (one.error or one.consumer or "–").partition("\n")[0],
    "Payload": lambda one: parts.preview(one.event),
}


class QueueView:
    """What a request wants to see of a queue: a group of it, and one of its tabs."""

    def __init__(self, request: Request, service: Service, sample: Sample) -> None:
        self.request, self.service = request, service
        self.queue = queue_of(request, service)
        self.name = self.queue.name
        self.groups = groups_of(self.queue)
        self.has_groups = self.queue.policy.mode == "fanout"
        query = request.query_params
        wanted = query.get("group") or self.groups[0]
        self.group = wanted if wanted in self.groups else self.groups[0]
        self.found = _found(sample, self.name, self.group)
        self.holds_dead = self.found.letters is not None
        asked = query.get("tab", "dead" if self.holds_dead and "state" not in query else "")
        self.tab = asked if asked in dict(self.tabs()) else "messages"
        self.state = check_state(query.get("state") or None)
        text = query.get("after", "0")
        self.after = int(text) if text.isdecimal() and len(text) <= 18 else 0
        self.base = rendering.base_of(request)
        self.may_write, self.may_admin = rendering.can(request, "write"), rendering.can(request, "admin")

    def tabs(self) -> list[tuple[str, str]]:
        """The parts of the page, each with its name."""
        groups = [("groups", "Groups")] if self.has_groups else []
        return [
            ("messages", "Messages"),
            ("dead", "Dead letters"),
            ("workers", "Workers"),
            ("schedules", "Schedules"),
            *groups,
            ("policy", "Policy"),
        ]

    def tables(self, sample: Sample) -> dict[str, Table]:
        """The tables of the tab, as they are now."""
        if self.tab == "workers":
            return {"workers": self._workers()}
        if self.tab == "schedules":
            return {"schedules": schedules.listing(self.request).table(self.queue.schedules())}
        if self.tab == "groups":
            return {"group_table": self._groups(sample)}
        if self.tab == "messages":
            return {"messages": self._pending() if self.state == "in_flight" else self._messages()}
        return {}

    def values(self) -> dict[str, object]:
        """What the tab shows beside its tables."""
        if self.tab == "messages":
            templates = [event for event in self.queue.peek(5, group=self.group) if not event.binary]
            return {"charts": charts.QUEUE, "templates": templates, "states": MESSAGE_STATES}
        if self.tab == "policy":
            return {"policy": policy_form(self.queue.policy)}
        if self.tab != "dead":
            return {}
        backend = self.service.journal._backend.queue(self.name)
        return {
            "dead": lists.turned(self.request, "dead", lambda text: dead_letters(backend, DeadLetterCursor.read(text))),
            "failed": lists.turned(self.request, "failed", lambda text: failures(backend, self.group, _position(text))),
        }

    def _pending(self) -> Table:
        """Messages in flight, with what can be done about each."""

        def row(held: PendingDelivery, cells: list[str]) -> Row:
            fields = {"queue": self.name, "token": held.token}
            buttons = [ActButton("Release", "release", fields)] if self.may_write else []
            if self.may_admin:
                buttons.append(ActButton("Done", "settle", {**fields, "outcome": "done"}))
                buttons.append(ActButton("Give up", "settle", {**fields, "outcome": "dead"}))
            return Row(held.token, cells, self._address(held.seq), buttons=buttons)

        listing = Listing(
            self.request,
            "pending",
            PENDING_COLUMNS,
            row,
            usual="-message",
            empty="nothing is in flight",
            has_buttons=self.may_write,
        )
        found = listing.table(self.queue.pending(self.group if self.has_groups else None))
        found.opens = True
        return found

    def _messages(self) -> Table:
        """Messages that are not settled, with what can be done about each."""
        group = self.group if self.has_groups else None
        found = self.queue.messages(self.state, group=group, after=self.after, limit=SHOWN + 1)
        seqs = sorted({one.seq for one in found})
        shown = [one for one in found if one.seq in set(seqs[:SHOWN])]
        columns = self._columns()
        rows = [self._message(one, [MESSAGE_COLUMNS[name](one) for name in columns]) for one in shown]
        table = Table("messages", columns, rows, [], "no message is in this state")
        table.has_buttons, table.opens = self.may_admin, True
        table.minor = [at for at, name in enumerate(columns) if name not in ("Message", "State", "Error or holder")]
        if len(seqs) > SHOWN:
            table.following = urlencode({**self.request.query_params, "after": shown[-1].seq})
        return table

    def _columns(self) -> list[str]:
        """What there is to say of this queue's messages."""
        unused = {"Group": not self.has_groups, "Priority": not self.queue.policy.priority}
        return [name for name in MESSAGE_COLUMNS if not unused.get(name)]

    def _message(self, one: QueueMessage, cells: list[str]) -> Row:
        buttons = []
        fields = {"queue": self.name, "seq": str(one.seq)}
        if self.may_admin and one.state == "delayed":
            buttons.append(ActButton("Run now", "run-now", fields | ({"group": one.group} if one.group else {})))
        if self.may_admin and one.state != "in_flight":
            buttons.append(ActButton("Delete", "delete-message", fields))
        level: parts.Level = "alert" if one.state == "failed" else ""
        return Row(f"{one.group}/{one.seq}/{one.state}", cells, self._address(one.seq), level, buttons)

    def _address(self, seq: int) -> str:
        return f"{self.base}/topics/{rendering.segment(self.name)}/events/{seq}"

    def _workers(self) -> Table:
        """Workers, and other consumers that gave their name: where, since when, their last sign of life, what they
        hold."""
        empty = "no worker is there: penstock work, or queue.worker(handler)"
        return Listing(self.request, "workers", WORKER_COLUMNS, _worker_row, usual="-seen", empty=empty).table(
            self.queue.consumers()
        )

    def _groups(self, sample: Sample) -> Table:
        """The groups of a queue in fanout mode, each with a page of its own."""

        def row(one: QueueSample, cells: list[str]) -> Row:
            return queue_row(one, cells, self.base)

        listing = Listing(self.request, "groups", GROUP_COLUMNS, row, usual="group", empty="no group is there")
        return listing.table(sample.queues.get(self.name, ()))


def _worker_row(one: QueueConsumer, cells: list[str]) -> Row:
    return Row(f"{one.group}/{one.name}", cells, None, "alert" if one.state == "gone" and one.in_hand else "")


def _position(text: str) -> int:
    place = DeadLetterCursor.read(text)
    return 0 if place is None else place.seq


def in_hand_words(one: QueueConsumer) -> str:
    """What a consumer holds, by position."""
    if not one.in_hand:
        return "nothing"
    shown = ", ".join(f"#{seq}" for seq in one.holds[:3])
    return shown if one.in_hand <= 3 else f"{shown} and {one.in_hand - 3:,} more"


def queue_page(request: Request, service: Service, sample: Sample) -> Content:
    view = QueueView(request, service, sample)
    shared = {"view": view, "shown_groups": SHOWN_GROUPS}
    return Content(
        "queue.html",
        view.name,
        tiles(view.found),
        view.tables(sample),
        lambda: {**shared, "pauses": view.queue.pauses(), **view.values()},
        "Dead-letter queue" if view.holds_dead else "Queue",
    )
