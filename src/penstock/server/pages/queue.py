"""The page of a queue: its messages by state, its failures, workers, schedules, groups and policy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from urllib.parse import urlencode

from starlette.requests import Request

from penstock.core.observe.sample import FailedMessage, QueueSample, Sample
from penstock.core.queue import inspect
from penstock.core.queue.dead_letters import DeadLetterCursor
from penstock.server.forms import policy_form
from penstock.server.pages import charts, parts
from penstock.server.pages.failures import failure_page
from penstock.server.pages.overview import STATE_COLUMNS, queue_row
from penstock.server.pages.parts import ActButton, Content, ListColumn, Row, Table, Tile, count_tile
from penstock.server.pages.schedules import schedule_table
from penstock.server.pages.workers import WorkerAtQueue, worker_table
from penstock.server.service import Service, existing_queue

SHOWN_GROUPS: Final = 8
"""The number of groups with their own links. When there are more groups, the page shows a table."""
MESSAGE_STATES: Final = (("", "all"), *((state, state.replace("_", " ")) for state in inspect.STATES))
QUEUE_TABS: Final = {
    "messages": "Messages",
    "dead": "Failures",
    "workers": "Workers",
    "schedules": "Schedules",
    "groups": "Groups",
    "policy": "Policy",
}


PENDING_COLUMNS: Final[parts.Columns[inspect.PendingDelivery]] = (
    ListColumn("Message", lambda held: held.seq, parts.position),
    ListColumn("Holder", lambda held: held.consumer),
    ListColumn("Group", lambda held: held.group, minor=True),
    ListColumn("Attempt", lambda held: held.attempt, parts.number),
    ListColumn("Progress", lambda held: held.progress),
    ListColumn("Delivered", lambda held: held.delivered_at, parts.moment, True),
    ListColumn("Deadline", lambda held: held.deadline, parts.moment),
)


GROUP_COLUMNS: Final = (ListColumn[QueueSample]("Group", lambda one: one.group), *STATE_COLUMNS)


def holder_or_error(one: inspect.QueueMessage) -> str | None:
    """Returns the consumer that holds a message, with its progress; for any other message, its last error."""
    if one.state != "in_flight":
        return one.error
    return ": ".join(str(said) for said in (one.consumer, one.progress) if said)


MESSAGE_COLUMNS: Final[parts.Columns[inspect.QueueMessage]] = (
    ListColumn("Message", lambda one: f"#{one.seq}"),
    ListColumn("State", lambda one: one.state.replace("_", " ")),
    ListColumn("Group", lambda one: one.group, minor=True),
    ListColumn("Attempts", lambda one: f"{one.attempts} of {one.max_attempts}", minor=True),
    ListColumn("Due or until", lambda one: one.due or one.deadline, parts.moment, True),
    ListColumn("Priority", lambda one: one.priority, str, True),
    ListColumn("Key", lambda one: one.key, minor=True),
    ListColumn("Error or holder", holder_or_error),
    ListColumn("Payload", lambda one: one.event, parts.preview, True),
)


def queue_tiles(found: QueueSample) -> list[Tile]:
    """Returns the tiles with the numbers of a group's messages, by state."""
    if found.letters is None:
        first = count_tile("ready", "Ready", found.ready)
        dead = count_tile("dead-count", "Dead letters", found.dead, alert=True)
    else:
        # A dead-letter queue holds other queues' dead letters, so none of its consumers is behind.
        first = count_tile("ready", "Dead letters here", found.letters, alert=True)
        dead = count_tile("dead-count", "Dead letters of its own", found.dead, alert=True)
    return [
        first,
        count_tile("in-flight", "In flight", found.in_flight),
        count_tile("delayed", "Delayed", found.delayed),
        count_tile("failed", "Failed", found.failed, alert=True),
        dead,
        Tile("oldest", "Oldest ready", parts.age(found.oldest_age)),
        Tile("rate", "Pushed a second", parts.rate(found.rate)),
    ]


class QueueView:
    """The part of a queue that a request shows: one group and one tab."""

    def __init__(self, request: Request, service: Service, sample: Sample) -> None:
        self.request, self.service, self.sample = request, service, sample
        self.queue = existing_queue(request, service)
        self.name = self.queue.name
        with inspect.open_view(service.journal.backend.queue(self.name)) as view:
            self.groups, self.has_groups = inspect.delivered_groups(view.state), view.state.fanout
        query = request.query_params
        wanted = query.get("group") or self.groups[0]
        self.group = wanted if wanted in self.groups else self.groups[0]
        own = (one for one in sample.queues.get(self.name, ()) if one.group == self.group)
        self.found = next(own, QueueSample(self.name, self.group, 0, 0, 0, 0, None))
        self.holds_dead = self.found.letters is not None
        self.tabs = {name: label for name, label in QUEUE_TABS.items() if name != "groups" or self.has_groups}
        asked = query.get("tab", "dead" if self.holds_dead and "state" not in query else "")
        self.tab = asked if asked in self.tabs else "messages"
        self.state = inspect.check_state(query.get("state") or None)
        text = query.get("after", "0")
        self.after = int(text) if text.isdecimal() and len(text) <= 18 else 0
        self.base = parts.base_of(request)
        self.may_write, self.may_admin = parts.can(request, "write"), parts.can(request, "admin")

    def tables(self) -> dict[str, Table]:
        """Returns the present tables of the tab."""
        if self.tab == "workers":
            return {"workers": self._workers()}
        if self.tab == "schedules":
            return {"schedules": schedule_table(self.request, self.queue.schedules())}
        if self.tab == "groups":
            found, row = self.sample.queues.get(self.name, ()), queue_row(self.base, self.sample)
            empty = "no group is there"
            return {"groups": parts.listing(self.request, "groups", GROUP_COLUMNS, found, row, empty, usual="group")}
        if self.tab == "messages":
            return {"messages": self._pending() if self.state == "in_flight" else self._messages()}
        return {}

    def values(self) -> dict[str, object]:
        """Returns the values that the tab shows beside its tables."""
        if self.tab == "messages":
            templates = [event for event in self.queue.peek(5, group=self.group) if not event.binary]
            return {"charts": charts.QUEUE, "templates": templates, "states": MESSAGE_STATES}
        if self.tab == "policy":
            return {"policy": policy_form(self.queue.policy)}
        if self.tab != "dead":
            return {}
        backend = self.service.journal.backend.queue(self.name)

        def dead(after: str) -> Iterator[FailedMessage]:
            return inspect.newest_dead(backend, DeadLetterCursor.read(after))

        def failed(after: str) -> Iterator[FailedMessage]:
            return inspect.newest_failed(backend, self.group, DeadLetterCursor.read(after))

        return {
            "dead": failure_page(self.request, "dead", dead),
            "failed": failure_page(self.request, "failed", failed),
        }

    def _pending(self) -> Table:
        """Returns the messages in flight, with the buttons for each message."""

        def row(held: inspect.PendingDelivery, cells: list[str]) -> Row:
            fields = {"queue": self.name, "token": held.token}
            buttons = [ActButton("Release", "release", fields)] if self.may_write else []
            if self.may_admin:
                buttons.append(ActButton("Done", "settle", {**fields, "outcome": "done"}))
                buttons.append(ActButton("Give up", "settle", {**fields, "outcome": "dead"}))
            return Row(held.token, cells, self._address(held.seq), buttons=buttons)

        found = self.queue.pending(self.group if self.has_groups else None)
        made = parts.listing(
            self.request, "pending", PENDING_COLUMNS, found, row, "nothing is in flight", usual="-message"
        )
        made.has_buttons, made.opens = self.may_write, True
        return made

    def _messages(self) -> Table:
        """Returns unsettled messages, with their columns and buttons for this queue."""
        group = self.group if self.has_groups else None
        found = self.queue.messages(self.state, group=group, after=self.after, limit=parts.ROWS + 1)
        seqs = sorted({one.seq for one in found})
        shown = [one for one in found if one.seq in set(seqs[: parts.ROWS])]
        unused = {"Group": not self.has_groups, "Priority": not self.queue.policy.priority}
        columns = [column for column in MESSAGE_COLUMNS if not unused.get(column.title)]
        none = "no message is in this state"
        made = parts.table("messages", columns, shown, self._message, none, buttons=self.may_admin, opens=True)
        if len(seqs) > parts.ROWS:
            made.following = urlencode({**self.request.query_params, "after": shown[-1].seq})
        return made

    def _message(self, one: inspect.QueueMessage, cells: list[str]) -> Row:
        buttons = []
        fields = {"queue": self.name, "seq": str(one.seq)}
        if self.may_admin and one.state == "delayed":
            buttons.append(ActButton("Run now", "run-now", fields | ({"group": one.group} if one.group else {})))
        if self.may_admin and one.state != "in_flight":
            buttons.append(ActButton("Delete", "delete-message", fields, in_menu=True))
        level: parts.Level = "alert" if one.state == "failed" else ""
        return Row(f"{one.group}/{one.seq}/{one.state}", cells, self._address(one.seq), level, buttons)

    def _address(self, seq: int) -> str:
        return f"{self.base}/topics/{parts.segment(self.name)}/events/{seq}"

    def _workers(self) -> Table:
        """Returns the workers, and other consumers that gave their names: where they run, since when, their last
        sign of life, and the messages that they hold.
        """

        found = [WorkerAtQueue(self.name, one) for one in self.queue.consumers()]
        return worker_table(self.request, found, ("Queue",) if self.has_groups else ("Queue", "Group"))


def queue_page(request: Request, service: Service, sample: Sample) -> Content:
    view = QueueView(request, service, sample)
    shared = {"view": view, "shown_groups": SHOWN_GROUPS}
    return Content(
        "queue.html",
        view.name,
        queue_tiles(view.found),
        view.tables(),
        lambda: {**shared, "pauses": view.queue.pauses(), **view.values()},
        "Dead-letter queue" if view.holds_dead else "Queue",
    )
