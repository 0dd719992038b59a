"""The page of all queues' periodic messages, with their next ticks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final

from starlette.requests import Request

from penstock.core.observe.sample import Sample
from penstock.core.queue.schedule import Cron, Schedule
from penstock.core.units import show_duration
from penstock.errors import UnknownQueue
from penstock.server.pages import parts
from penstock.server.pages.parts import ActButton, Content, ListColumn, Row, Table
from penstock.server.service import Service


def _timing(schedule: Schedule) -> str:
    """Returns the time when a schedule ticks, in words."""
    if schedule.cron is not None:
        return schedule.cron
    return f"every {show_duration(schedule.interval)}"


def _tick(ahead: int) -> Callable[[Schedule], datetime]:
    """Returns the time when a schedule pushes its message, a number of ticks after the next tick."""

    def tick(schedule: Schedule) -> datetime:
        at = schedule.next_tick
        for _ in range(ahead):
            step = timedelta(seconds=schedule.interval or 0.0)
            at = at + step if schedule.cron is None else Cron(schedule.cron, schedule.timezone).next(at)
        return at

    return tick


SCHEDULE_COLUMNS: Final[parts.Columns[Schedule]] = (
    ListColumn("Schedule", lambda one: one.name),
    ListColumn("Queue", lambda one: one.queue),
    ListColumn("When", _timing),
    ListColumn("Time zone", lambda one: one.timezone if one.cron is not None else None),
    ListColumn("Next", _tick(0), parts.moment),
    ListColumn("Then", _tick(1), parts.moment, True),
    ListColumn("Then", _tick(2), parts.moment, True),
    ListColumn("Last", lambda one: one.last_tick, parts.moment, True),
    ListColumn("Missed ticks", lambda one: one.missed, minor=True),
    ListColumn("Kind", lambda one: one.kind, minor=True),
)


def schedule_table(request: Request, found: Iterable[Schedule]) -> Table:
    """Returns the schedules, the next to tick first."""
    base, may_write = parts.base_of(request), parts.can(request, "write")

    def row(one: Schedule, cells: list[str]) -> Row:
        fields = {"queue": one.queue, "schedule": one.name}
        buttons = [
            ActButton("Run now", "run-schedule", fields),
            ActButton("Remove", "remove-schedule", fields, in_menu=True),
        ]
        href = f"{base}/queues/{parts.segment(one.queue)}?tab=schedules"
        return Row(f"{one.queue}/{one.name}", cells, href, buttons=buttons if may_write else [])

    empty = "there is no schedule: queue.every(60, payload, name=…)"
    return parts.listing(request, "schedules", SCHEDULE_COLUMNS, found, row, empty, usual="next", buttons=may_write)


def schedules_page(request: Request, service: Service, sample: Sample) -> Content:
    found: list[Schedule] = []
    for name in service.journal.queues():
        with suppress(UnknownQueue):  # dropped at this moment
            found += service.journal.queue(name, create=False).schedules()
    return Content("schedules.html", "Schedules", [], {"schedules": schedule_table(request, found)})
