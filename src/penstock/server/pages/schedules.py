"""The periodic messages of all queues, with the ticks that come next."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta

from starlette.requests import Request

from penstock.errors import UnknownQueue
from penstock.observe.sample import Sample
from penstock.queue.run.cron import Cron
from penstock.queue.run.schedule import Schedule
from penstock.server.pages import rendering
from penstock.server.pages.lists import ListColumn, Listing
from penstock.server.pages.parts import ActButton, Row
from penstock.server.pages.rendering import Content
from penstock.server.service import Service
from penstock.units import show_duration

NEXT = 3
"""Ticks that are shown ahead."""


def next_ticks(schedule: Schedule, count: int = NEXT) -> list[datetime]:
    """The next times a schedule pushes its message."""
    ticks = [schedule.next_tick]
    while len(ticks) < count:
        if schedule.cron is not None:
            ticks.append(Cron(schedule.cron, schedule.timezone).next(ticks[-1]))
        else:
            ticks.append(ticks[-1] + timedelta(seconds=schedule.interval or 0.0))
    return ticks


def timing(schedule: Schedule) -> str:
    """When a schedule ticks, in words."""
    if schedule.cron is not None:
        return f"{schedule.cron} ({schedule.timezone})"
    return f"every {show_duration(schedule.interval)}"


def _tick(at: int) -> Callable[[Schedule], str]:
    return lambda one: next_ticks(one, at + 1)[at].isoformat(timespec="milliseconds")


COLUMNS: tuple[ListColumn[Schedule], ...] = (
    ListColumn("Schedule", "schedule", lambda one: one.name),
    ListColumn("Queue", "queue", lambda one: one.queue),
    ListColumn("When", "when", timing, minor=True),
    ListColumn("Next", "next", _tick(0)),
    ListColumn("Then", "then", _tick(1), minor=True),
    ListColumn("Then", "after", _tick(2), minor=True),
    ListColumn(
        "Last",
        "last",
        lambda one: "–" if one.last_tick is None else one.last_tick.isoformat(timespec="milliseconds"),
        minor=True,
    ),
    ListColumn("Missed ticks", "missed", lambda one: one.missed, minor=True),
    ListColumn("Kind", "kind", lambda one: one.kind, minor=True),
)


def listing(request: Request) -> Listing[Schedule]:
    """Schedules, the next to tick first."""
    base, may_write = rendering.base_of(request), rendering.can(request, "write")

    def row(one: Schedule, cells: list[str]) -> Row:
        fields = {"queue": one.queue, "schedule": one.name}
        buttons = [ActButton("Run now", "run-schedule", fields), ActButton("Remove", "remove-schedule", fields)]
        href = f"{base}/queues/{rendering.segment(one.queue)}?tab=schedules"
        return Row(f"{one.queue}/{one.name}", cells, href, buttons=buttons if may_write else [])

    empty = "there is no schedule: queue.every(60, payload, name=…)"
    return Listing(request, "schedules", COLUMNS, row, usual="next", empty=empty, has_buttons=may_write)


def all_schedules(service: Service) -> list[Schedule]:
    """The schedules of every queue."""
    found: list[Schedule] = []
    for name in service.journal.queues():
        with suppress(UnknownQueue):  # dropped this very moment
            found += service.journal.queue(name, create=False).schedules()
    return found


def schedules_page(request: Request, service: Service, sample: Sample) -> Content:
    tables = {"schedules": listing(request).table(all_schedules(service))}
    return Content("schedules.html", "Schedules", [], tables)
