"""The growth table: queues, deliveries, tickets for results, tasks."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import penstock
from growth.row import Many, Row, new, size
from growth.world import World
from penstock import Delivery, ResultTicket, Task
from penstock.core.local.backend import LocalJournal

GROUPS = "asks every group what it has left"


def take(w: World, name: str = "settled") -> Delivery:
    delivery = w.queue(name).take()
    assert delivery is not None
    return delivery


def drained(w: World) -> list[int]:
    """Positions of messages that wait for their time."""
    return [one.seq for one in w.queue("settled").messages("delayed", limit=2)]


def queue_worker(w: World) -> Any:
    done = threading.Event()
    name = new("worked")
    w.queue(name).push(1)
    return w.queue(name).worker(lambda delivery: done.set()), done


def work(w: World, job: Any) -> None:
    worker, done = job
    worker.start()
    assert done.wait(300)
    worker.stop()


def answered(w: World) -> ResultTicket:
    name = new("asked")
    queue = w.queue(name)
    ticket = queue.push(1, reply=True)
    with queue.worker(lambda delivery: 7):
        ticket.result(300)
    return ticket


def tick(w: World) -> None:
    """What the scheduler does when it wakes and none of many is due."""
    assert isinstance(w.journal, LocalJournal)
    w.journal._registry.scheduler.run_due()


def add(a: int, b: int) -> int:
    return a + b


def task(w: World) -> Task[..., int]:
    return penstock.Tasks(w.journal).task(queue="settled", name="add")(add)


QUEUES = [
    Row("Queue.policy", lambda w: w.queue("jobs").policy),
    Row("Queue.push", lambda w: w.queue("settled").push({"n": 1})),
    Row("Queue.push(key=)", lambda w: w.queue("settled").push({"n": 1}, key="one")),
    Row("Queue.push(delay=)", lambda w: w.queue("settled").push({"n": 1}, delay=5)),
    Row("Queue.push(dedup=)", lambda w: w.queue("settled").push({"n": 1}, dedup=new("dedup"))),
    Row("Queue.push(priority=)", lambda w: w.queue("ranked").push({"n": 1}, priority=2)),
    Row("Queue.submit", lambda w: w.queue("settled").submit(1).result()),
    Row("Queue.push_many", lambda w: size(w.queue("settled").push_many(range(5)))),
    Row("Queue.receive", lambda w: next(iter(w.queue("settled").receive()))),
    Row("Queue.take", lambda w: w.queue("settled").take()),
    Row("Queue.take(newest=)", lambda w: w.queue("settled").take(newest=True)),
    Row("Queue.take(seq=)", lambda w: w.queue("settled").take(seq=w.queue("settled").peek(9)[-1].seq)),
    Row("Queue.take(seq= of one key)", lambda w: w.queue("hot").take(seq=w.size - 5)),
    Row("Queue.take(key=)", lambda w: w.queue("hot").take(key="hot")),
    Row("Queue.take(key= of none)", lambda w: w.queue("settled").take(key="none")),
    Row("Queue.take(priorities)", lambda w: w.queue("ranked").take()),
    Row("Queue.take(behind failed)", lambda w: w.queue("failing").take()),
    Row("Queue.take(group=)", lambda w: w.queue("groups").take(group="group 1")),
    Row("Queue.take_many", lambda w: size(w.queue("settled").take_many(5))),
    Row("Queue.take_async", lambda w: asyncio.run(w.queue("settled").take_async())),
    Row("Queue.take_many_async", lambda w: size(asyncio.run(w.queue("settled").take_many_async(5)))),
    Row(
        "Queue.ack_many",
        lambda w, held: Many(w.queue("settled").ack_many(held)),
        lambda w: w.queue("settled").take_many(5),
    ),
    Row("Queue.delivery", lambda w, token: w.queue("settled").delivery(token), lambda w: take(w).token),
    Row("Queue.get", lambda w: w.queue("jobs").get(w.size // 2)),
    Row("Queue.get(behind many in flight)", lambda w: w.queue("flying").get(w.size + 30)),
    Row("Queue.get(in flight)", lambda w: w.queue("flying").get(w.size // 2)),
    Row("Queue.get(none)", lambda w: w.queue("flying").get(w.size + 300)),
    Row("Queue.get(key=)", lambda w: w.queue("settled").get(key="none")),
    Row("Queue.get(key= of one key)", lambda w: w.queue("hot").get(key="hot")),
    Row("Queue.peek", lambda w: size(w.queue("jobs").peek(5))),
    Row("Queue.peek(priorities)", lambda w: size(w.queue("ranked").peek(5))),
    Row("Queue.peek(of one key)", lambda w: size(w.queue("hot").peek(5))),
    Row("Queue.push(lanes)", lambda w: w.queue("lanes").push(1, key="tenant 3/new")),
    Row("Queue.take(lanes)", lambda w: w.queue("lanes").take()),
    Row("Queue.take_many(lanes)", lambda w: size(w.queue("lanes").take_many(5))),
    Row("Queue.peek(lanes)", lambda w: size(w.queue("lanes").peek(5))),
    Row("Queue.ack_many(lanes)", lambda w, held: Many(w.queue("lanes").ack_many([held])), lambda w: take(w, "lanes")),
    Row("Queue.__len__(lanes)", lambda w: len(w.queue("lanes"))),
    Row("Queue.push(throttle, rate)", lambda w: w.queue("limited").push(1, key=new("key"))),
    Row("Queue.take(throttle, rate)", lambda w: w.queue("limited").take()),
    Row("Queue.peek(throttle, rate)", lambda w: size(w.queue("limited").peek(5))),
    Row(
        "Queue.ack_many(rate)", lambda w, held: Many(w.queue("limited").ack_many([held])), lambda w: take(w, "limited")
    ),
    Row("Queue.take(delayed)", lambda w: w.queue("waiting").take()),
    Row("Queue.peek(delayed)", lambda w: size(w.queue("waiting").peek(5))),
    Row("Queue.__iter__", lambda w: size(w.queue("jobs"))),
    Row("Queue.__len__", lambda w: len(w.queue("jobs"))),
    Row("Queue.__len__(fanout)", lambda w: len(w.queue("groups")), grows=GROUPS),
    Row("Queue.stats", lambda w: w.queue("jobs").stats()),
    Row("Queue.stats(dead letters)", lambda w: w.queue("letters").stats()),
    Row("Queue.pending", lambda w: size(w.queue("jobs").pending())),
    Row("Queue.pending(group=)", lambda w: size(w.queue("groups").pending("group 2"))),
    Row("Queue.failed", lambda w: size(w.queue("failing").failed())),
    Row("Queue.failures", lambda w: size(w.queue("failing").failures())),
    Row("Queue.dead_letters", lambda w: size(w.queue("lost").dead_letters())),
    Row("Queue.dead_letters(none)", lambda w: size(w.queue("jobs").dead_letters())),
    Row("Queue.dead_letters(of few)", lambda w: size(w.queue("rarely-lost").dead_letters())),
    Row("Queue.messages", lambda w: size(w.queue("jobs").messages(limit=5))),
    Row("Queue.messages(key=)", lambda w: size(w.queue("hot").messages(key="hot", limit=5))),
    Row("Queue.messages(after=)", lambda w: size(w.queue("jobs").messages(after=w.size // 2, limit=5))),
    Row("Queue.messages(delayed)", lambda w: size(w.queue("jobs").messages("delayed", limit=5))),
    Row("Queue.messages(in_flight)", lambda w: size(w.queue("jobs").messages("in_flight", limit=5))),
    Row("Queue.messages(many in flight)", lambda w: size(w.queue("flying").messages("in_flight", limit=5))),
    Row("Queue.messages(behind many)", lambda w: size(w.queue("flying").messages(after=w.size // 2, limit=5))),
    Row("Queue.messages(after= of one key)", lambda w: size(w.queue("hot").messages(after=w.size - 9, limit=5))),
    Row("Queue.messages(failed none)", lambda w: size(w.queue("jobs").messages("failed", limit=1))),
    Row("Queue.messages(delayed none)", lambda w: size(w.queue("failing").messages("delayed", limit=1))),
    Row("Queue.messages(ready none)", lambda w: size(w.queue("waiting").messages("ready", limit=1))),
    Row("Queue.stats(priorities)", lambda w: w.queue("ranked").stats()),
    Row("Queue.messages(group=)", lambda w: size(w.queue("groups").messages(group="group 3", limit=5))),
    Row("Queue.task_times", lambda w: size(w.queue("jobs").task_times())),
    Row("Queue.consumers", lambda w: size(w.queue("jobs").consumers())),
    Row("Queue.claim", lambda w: size(w.queue("jobs").claim(min_idle=0, limit=2))),
    Row("Queue.claim(of many)", lambda w: size(w.queue("flying").claim(min_idle=0, limit=1))),
    Row("Queue.redrive(nothing)", lambda w: w.queue("jobs").redrive(limit=1)),
    Row("Queue.redrive(dry_run=)", lambda w: w.queue("jobs").redrive(limit=1, dry_run=True)),
    Row("Queue.redrive(of few)", lambda w: w.queue("rarely-lost").redrive(limit=1, dry_run=True)),
    Row("Queue.redrive", lambda w: Many(w.queue("lost").redrive(limit=2))),
    Row("Queue.move", lambda w: Many(w.queue("moved").move(w.queue("settled"), limit=2))),
    Row("Queue.move(behind failed)", lambda w: w.queue("failing").move(w.queue("settled"), limit=1)),
    Row("Queue.move(behind many in flight)", lambda w: w.queue("flying").move(w.queue("settled"), limit=1)),
    Row("Queue.discard(behind many in flight)", lambda w: w.queue("flying").discard([w.size + 20])),
    Row("Queue.discard", lambda w: w.queue("moved").discard([w.size // 2])),
    Row("Queue.run_now", lambda w, seqs: w.queue("settled").run_now(seqs), drained),
    Row("Queue.purge", lambda w: Many(w.queue("purged").purge())),
    Row("Queue.drop", lambda w: Many(w.queue("dropped-queue").drop())),
    Row("Queue.configure", lambda w: w.queue("jobs").configure(max_attempts=9)),
    Row("Queue.pause", lambda w: w.queue("moved").pause()),
    Row("Queue.pauses", lambda w: size(w.queue("moved").pauses())),
    Row("Queue.resume", lambda w: w.queue("moved").resume()),
    Row("Queue.groups", lambda w: size(w.queue("groups").groups())),
    Row("Queue.add_group", lambda w: w.queue("groups").add_group(new("group")), grows=GROUPS),
    Row("Queue.add_group(after=)", lambda w: w.queue("groups").add_group(new("group"), after="latest")),
    Row("Queue.remove_group", lambda w: w.queue("groups").remove_group("group 4")),
    Row("Queue.worker", work, queue_worker),
    Row("Queue.every", lambda w, timed: timed.every(86_400, name=new("schedule")), lambda w: w.queue("timed")),
    Row("Queue.every(beside many)", tick),
    Row("Queue.schedules", lambda w: size(w.queue("timed").schedules())),
    Row("Queue.unschedule", lambda w: w.queue("timed").unschedule("schedule 1")),
]

DELIVERIES = [
    *(
        Row(f"Delivery.{name}", lambda w, held, name=name: getattr(held, name), take)
        for name in ("consumer", "deadline", "group", "headers", "key", "kind", "payload", "queue", "seq", "token")
    ),
    Row("Delivery.as_", lambda w, held: held.as_(dict), take),
    Row("Delivery.poison", lambda w, held: held.poison, take),
    Row("Delivery.ack", lambda w, held: held.ack(), take),
    Row("Delivery.ack_async", lambda w, held: asyncio.run(held.ack_async()), take),
    Row("Delivery.nack", lambda w, held: held.nack(), take),
    Row("Delivery.nack(delay=)", lambda w, held: held.nack(delay=9), take),
    Row("Delivery.nack(dead=)", lambda w, held: held.nack(dead=True), take),
    Row("Delivery.nack_async", lambda w, held: asyncio.run(held.nack_async()), take),
    Row("Delivery.extend", lambda w, held: held.extend(), take),
    Row("Delivery.release", lambda w, held: held.release(), take),
]

RESULTS = [
    Row("Queue.push(reply=)", lambda w: w.queue("settled").push(1, reply=True)),
    Row("ResultTicket.done", lambda w, ticket: ticket.done(), answered),
    Row("ResultTicket.result", lambda w, ticket: ticket.result(), answered),
    Row("ResultTicket.result_async", lambda w, ticket: asyncio.run(ticket.result_async()), answered),
    Row("Task.push", lambda w, one: one.push(1, 2), task),
    Row("Task.push_async", lambda w, one: asyncio.run(one.push_async(1, 2)), task),
    Row("Task.ask", lambda w, one: one.ask(1, 2), task),
    Row("Task.ask_async", lambda w, one: asyncio.run(one.ask_async(1, 2)), task),
    Row("Task.every", lambda w, one: one.every("1d", args=(1, 2), name=new("schedule")), task),
    Row("Task.at", lambda w, one: one.at(cron="0 6 * * *", args=(1, 2), name=new("schedule")), task),
    Row("Task.call", lambda w, one: one.call(1, 2), task),
    Row("Task.then", lambda w, one: one.then(one.call(b=2)).push(1, 2), task),
    Row("Task.prepared", lambda w, one: one.prepared((1, 2), {}), task),
    Row("Task.own_options", lambda w, one: one.own_options(), task),
    Row("Task.using", lambda w, one: one.using(delay=5), task),
]

ROWS = [*QUEUES, *DELIVERIES, *RESULTS]
