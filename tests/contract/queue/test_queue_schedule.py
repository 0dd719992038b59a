"""Periodic messages, and the cron lines that may drive them."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from journals import DEADLINE, Place, eventually, on, only

import penstock
from penstock import Journal, ManualClock, Queue
from penstock.core.clock import SystemClock
from penstock.core.queue.schedule import Cron
from penstock.errors import ConfigError, InvalidName

Reopen = Callable[[Journal], Journal]


def ticks(queue: Queue) -> list[str]:
    return [event.headers["schedule-tick"] for event in queue]


def at_least(queue: Queue, count: int) -> list[Any]:
    eventually(lambda: len(queue) >= count, f"{count} ticks")
    return [event.payload for event in queue]


# ── every ────────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_one_message_per_interval(journal: Journal, clock: ManualClock) -> None:
    queue = journal.queue("jobs")
    start = datetime.fromtimestamp(clock.now_ms() / 1000, UTC)
    made = queue.every(60, {"do": "it"}, name="minutely", kind="tick", headers={"h": "1"}, key="k", missed="all")
    assert (made.name, made.interval, made.cron, made.next_tick) == ("minutely", 60, None, start + timedelta(minutes=1))
    clock.advance(59.999)
    queue.push("something else")
    clock.advance(0.001)
    assert at_least(queue, 2) == ["something else", {"do": "it"}]
    tick = queue.get(2)
    assert tick is not None and (tick.kind, tick.key, tick.headers["h"], tick.headers["schedule"]) == (
        "tick", "k", "1", "minutely",
    )  # fmt: skip
    assert tick.headers["schedule-tick"] == (start + timedelta(minutes=1)).isoformat()
    clock.advance(120)
    at_least(queue, 4)
    (listed,) = queue.schedules()
    assert listed.last_tick == start + timedelta(minutes=3) and listed.next_tick == start + timedelta(minutes=4)


def test_a_schedule_survives_a_restart_and_makes_up_for_missed_ticks(
    journal: Journal, clock: ManualClock, reopen: Reopen
) -> None:
    journal.queue("jobs").every(10, "t", name="often", missed="all")
    clock.advance(10)
    at_least(journal.queue("jobs"), 1)
    journal.close()
    clock.advance(35)
    queue = reopen(journal).queue("jobs")
    at_least(queue, 4)
    clock.advance(5)
    at_least(queue, 5)
    assert len(set(ticks(queue))) == 5


@on("memory", "sqlite")
def test_missed_ticks_can_be_one_or_none(journal: Journal, clock: ManualClock) -> None:
    one, none = journal.queue("one"), journal.queue("none")
    one.every(10, "t", name="s", missed="last")
    none.every(10, "t", name="s", missed="none")
    journal._registry.scheduler.close()
    clock.advance(1005)
    from penstock.core.queue.schedule import Scheduler

    journal._registry.scheduler = Scheduler(journal._registry)
    for queue in (one, none):
        journal._registry.scheduler.watch(queue.name)
    eventually(lambda: (len(one) == 1 and len(none) == 1) or len(one) > 1)
    assert len(one) == 1 and one.schedules()[0].next_tick == one.schedules()[0].last_tick + timedelta(seconds=10)


def test_the_same_schedule_again_changes_nothing_and_another_replaces_it(journal: Journal, clock: ManualClock) -> None:
    queue = journal.queue("jobs")
    first = queue.every(60, "t", name="s")
    clock.advance(30)
    assert queue.every(60, "t", name="s") == first
    other = queue.every(timedelta(seconds=60), "u", name="s")
    assert other.next_tick == first.next_tick + timedelta(seconds=30)
    assert [one.name for one in queue.schedules()] == ["s"]
    queue.every("@hourly", "h", name="a")
    assert [one.name for one in queue.schedules()] == ["a", "s"]
    assert queue.unschedule("s") and not queue.unschedule("s")
    clock.advance(300)
    queue.every(1, "now", name="b")
    clock.advance(1)
    assert at_least(queue, 1)[:1] == ["now"]


def test_bad_schedules_are_refused(journal: Journal) -> None:
    queue = journal.queue("jobs")
    for interval in (0, -5, "every day", "* * * *", "61 * * * *", None):
        with pytest.raises(ConfigError):
            queue.every(interval, 1, name="s")  # type: ignore[arg-type]
    for options in ({"timezone": "Mars/Olympus"}, {"missed": "some"}, {"priority": 3}, {"kind": ""}):
        with pytest.raises(ConfigError):
            queue.every("0 * * * *", 1, name="s", **options)  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        queue.every(5, object(), name="s")
    with pytest.raises(InvalidName):
        queue.every(5, 1, name=" ")
    assert queue.schedules() == []


def test_a_full_queue_makes_a_tick_wait(journal: Journal, clock: ManualClock) -> None:
    queue = journal.queue("jobs", max_size=1)
    queue.every(10, "t", name="s")
    queue.push("in the way")
    clock.advance(10)
    journal.topic("other").append("k", 1)
    delivery = queue.take()
    assert delivery is not None
    delivery.ack()
    assert at_least(queue, 1) == ["t"]


class SteppedClock(SystemClock):
    """The system's clock for those who ask what it is; it moves only when told to."""

    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.ms


def test_the_scheduler_wakes_for_every_tick(place: Place) -> None:
    clock = SteppedClock()
    journal = place.open(clock=clock, durability="process")
    queue = journal.queue("jobs")
    scheduler = journal._registry.scheduler
    scheduler.close()  # the thread is not needed: what it does, the test does
    queue.every(0.1, "tick", name="t")
    queue.every(0.35, "tock", name="u")
    pushed = []
    for _ in range(12):
        due = scheduler.run_due()
        assert due is not None and clock.ms < due <= clock.ms + 100
        clock.ms = due
        scheduler.run_due()
        pushed.append((due - 1_700_000_000_000, [event.payload for event in queue]))
        queue.purge()
    assert [at for at, _ in pushed] == [100, 200, 300, 350, 400, 500, 600, 700, 800, 900, 1000, 1050]
    assert pushed[3][1] == ["tock"] and sorted(pushed[7][1]) == ["tick", "tock"]
    assert all(len(found) == 1 for at, found in pushed if at != 700)


def test_cron_lines_drive_schedules(journal: Journal, clock: ManualClock) -> None:
    queue = journal.queue("jobs")
    made = queue.every("0  */2 * * *", "even hours", name="s", timezone="Europe/Berlin", missed="all")
    assert made.cron == "0 */2 * * *" and made.interval is None and made.timezone == "Europe/Berlin"
    clock.advance(24 * 3600)
    at_least(queue, 12)
    times = [datetime.fromisoformat(tick) for tick in ticks(queue)]
    assert all(b - a == timedelta(hours=2) for a, b in pairwise(times)) and times[0].minute == 0


def _run_schedules(url: str, stop: Any) -> None:
    with penstock.open(url) as journal:
        journal.queue("jobs").every(0.05, "t", name="fast", missed="all")
        stop.wait(DEADLINE)


@pytest.mark.slow
@only(shared=True)
def test_one_push_per_tick_however_many_processes_run_it(place: Place) -> None:
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    queue = place.open().queue("jobs")
    queue.every(0.05, "t", name="fast", missed="all")
    processes = [context.Process(target=_run_schedules, args=(place.url, stop)) for _ in range(2)]
    for process in processes:
        process.start()
    try:
        eventually(lambda: len(queue) >= 40)
        stop.set()
        for process in processes:
            process.join(DEADLINE)
        assert queue.unschedule("fast")
        found = [datetime.fromisoformat(tick) for tick in ticks(queue)]
        assert len(set(found)) == len(found)
        assert {b - a for a, b in pairwise(found)} == {timedelta(milliseconds=50)}
    finally:
        stop.set()
        for process in processes:
            process.kill()
            process.join()


# ── cron ─────────────────────────────────────────────────────────────────────────────────────────────────────────────
def following(line: str, after: str, count: int = 1, zone: str = "UTC") -> list[str]:
    cron, moment = Cron(line, zone), datetime.fromisoformat(after).astimezone(UTC)
    found = []
    for _ in range(count):
        moment = cron.next(moment)
        found.append(moment.isoformat(timespec="minutes").removesuffix("+00:00"))
    return found


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("* * * * *", ["2026-02-27T10:31", "2026-02-27T10:32"]),
        ("*/15 * * * *", ["2026-02-27T10:45", "2026-02-27T11:00"]),
        ("7,37 9-11 * * *", ["2026-02-27T10:37", "2026-02-27T11:07"]),
        ("0 22 * * mon-fri", ["2026-02-27T22:00", "2026-03-02T22:00"]),
        ("0 0 29 2 *", ["2028-02-29T00:00", "2032-02-29T00:00"]),
        ("30 4 1,15 * 5", ["2026-03-01T04:30", "2026-03-06T04:30"]),
        ("0 12 * * 7", ["2026-03-01T12:00", "2026-03-08T12:00"]),
        ("0 0 31 * *", ["2026-03-31T00:00", "2026-05-31T00:00"]),
        ("5/20 * * JAN,Mar *", ["2026-03-01T00:05", "2026-03-01T00:25"]),
        ("0 9 L * *", ["2026-02-28T09:00", "2026-03-31T09:00"]),
        ("0 9 LW * *", ["2026-03-31T09:00", "2026-04-30T09:00"]),
        ("0 9 * * mon#2", ["2026-03-09T09:00", "2026-04-13T09:00"]),
        ("0 9 * * 5L", ["2026-03-27T09:00", "2026-04-24T09:00"]),
        ("@daily", ["2026-02-28T00:00", "2026-03-01T00:00"]),
        ("@Weekly", ["2026-03-01T00:00", "2026-03-08T00:00"]),
        ("@yearly", ["2027-01-01T00:00", "2028-01-01T00:00"]),
    ],
)
def test_cron_lines(line: str, expected: list[str]) -> None:
    assert following(line, "2026-02-27T10:30:15+00:00", 2) == expected


def test_a_sixth_field_in_front_is_the_seconds() -> None:
    cron, moment = Cron("*/20 30 10 * * *"), datetime.fromisoformat("2026-02-27T10:30:15+00:00")
    found = [moment := cron.next(moment) for _ in range(3)]
    assert [one.isoformat()[11:19] for one in found] == ["10:30:20", "10:30:40", "10:30:00"]
    assert cron.last(moment) == moment and cron.last(found[1]) == found[1]


def test_cron_in_a_zone_whose_clocks_change() -> None:
    # Berlin: forward on 2026-03-29 at 02:00, back on 2026-10-25 at 03:00.
    assert following("30 2 * * *", "2026-03-28T00:00+00:00", 3, "Europe/Berlin") == [
        "2026-03-28T01:30",
        "2026-03-29T01:00",  # 02:30 does not exist that day: it comes as soon as there is time again
        "2026-03-30T00:30",
    ]
    assert following("30 2 * * *", "2026-10-24T12:00+00:00", 2, "Europe/Berlin") == [
        "2026-10-25T00:30",  # the first of the two 02:30s
        "2026-10-26T01:30",
    ]
    assert following("0 * * * *", "2026-10-24T23:30+00:00", 3, "Europe/Berlin") == [
        "2026-10-25T00:00",
        "2026-10-25T01:00",
        "2026-10-25T02:00",
    ]


@pytest.mark.parametrize(
    "line", ["", "* * * *", "* * * * * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *", "* * * * 8",
             "a * * * *", "5-1 * * * *", "*/0 * * * *", "1- * * * *", ", * * * *", "0 0 31 2 *", "² * * * *", "@often"],
)  # fmt: skip
def test_bad_cron_lines_are_refused(line: str) -> None:
    with pytest.raises(ConfigError):
        Cron(line)


def test_a_schedule_that_cannot_push_makes_no_other_one_late(journal: Journal, clock: ManualClock) -> None:
    queue = journal.queue("jobs")
    queue.every(10, "keyed", name="a", key="k")
    queue.every(10, "plain", name="b")
    queue.configure(priority=True)  # messages with priorities have no keys
    clock.advance(11)
    eventually(lambda: [event.payload for event in queue] == ["plain"])


def test_the_priority_of_a_schedule_is_a_number(journal: Journal, reopen: Callable[[Journal], Journal]) -> None:
    queue = journal.queue("jobs", priority=True)
    with pytest.raises(ConfigError, match="whole number"):
        queue.every(3600, 1, name="x", priority="front")  # type: ignore[arg-type]
    queue.every(3600, 1, name="y", priority=3)
    assert [one.name for one in reopen(journal).queue("jobs").schedules()] == ["y"]
