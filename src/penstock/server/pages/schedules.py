"""The periodic messages of all queues, with the ticks that come next."""

from __future__ import annotations

from datetime import datetime, timedelta
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from penstock.observe.sample import Sample
from penstock.queue.run.cron import Cron
from penstock.queue.run.schedule import Schedule
from penstock.server.pages import parts, rendering
from penstock.server.pages.parts import ActButton, Row, Table, Update
from penstock.server.service import Service, guarded
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


def said(schedule: Schedule) -> str:
    """When a schedule ticks, in words."""
    if schedule.cron is not None:
        return f"{schedule.cron} ({schedule.timezone})"
    return f"every {show_duration(schedule.interval)}"


def table(schedules: list[Schedule], base: str, *, may_write: bool, may_admin: bool) -> Table:
    """Every schedule, the next to tick first."""
    rows = []
    for one in sorted(schedules, key=lambda one: (one.next_tick, one.queue, one.name)):
        ticks = [tick.isoformat(timespec="milliseconds") for tick in next_ticks(one)]
        last = "–" if one.last_tick is None else one.last_tick.isoformat(timespec="milliseconds")
        cells = [one.name, one.queue, said(one), *ticks, last, one.missed, one.kind]
        fields = {"queue": one.queue, "name": one.name}
        buttons = [ActButton("Run now", "run-schedule", fields), ActButton("Remove", "remove-schedule", fields)]
        href = f"{base}/queues/{quote(one.queue)}#schedule-section"
        rows.append(Row(f"{one.queue}/{one.name}", cells, href, buttons=buttons if may_write else []))
    columns = ["Schedule", "Queue", "When", "Next", "Then", "Then", "Last", "Missed ticks", "Kind"]
    empty = "there is no schedule: queue.every(60, payload, name=…)"
    return Table("schedules", columns, rows, [], empty, has_buttons=may_write)


def all_schedules(service: Service) -> list[Schedule]:
    """The schedules of every queue."""
    return [one for name in service.journal.queues() for one in service.journal.queue(name).schedules()]


@guarded("read")
def schedules_page(request: Request, service: Service) -> Response:
    found = table(all_schedules(service), rendering.base_of(request), **rendering.allowed(request))
    return rendering.page(request, service, "schedules.html", "Schedules", live="/live/schedules", schedules=found)


@guarded("read")
async def live_schedules(request: Request, service: Service) -> Response:
    base, allowed = rendering.base_of(request), rendering.allowed(request)

    def render(sample: Sample) -> Update:
        return parts.update((), table(all_schedules(service), base, **allowed))

    return rendering.stream(request, service, render)
