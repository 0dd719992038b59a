"""The growth table: journals, topics, transactions, outboxes, fences, subscriptions, workers."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import penstock
from growth.row import Many, Row, new, size
from growth.world import Count, World
from penstock import Draft, Outbox, Subscription, Watch, Worker
from penstock.core.consuming.subscription import EventFollower
from penstock.core.model.calls import FirstCall, GatherRequest, NextCall
from penstock.errors import ConfigError

TOPICS_MERGED = "asks every topic that is meant: the first of all may be in any of them"


UNINDEXED = "opens every block that is in no run of the index; housekeeping keeps these few"


def drafts() -> list[Draft]:
    return [Draft("placed", {"n": number}, key="many") for number in range(10)]


def transaction(w: World) -> None:
    with w.journal.transaction() as tx:
        tx.append("written", "placed", {"n": 1})


def fence(w: World) -> None:
    with w.journal.fence() as held:
        held.submit("written", "placed", {"n": 1})


def sql(w: World, query: str, *parameters: object) -> Any:
    """A query in this thread alone: what others do is not counted."""
    return w.journal.sql(f"set threads = 1; {query}", parameters)


def outbox(w: World) -> Outbox:
    made = w.journal.outbox()
    for _ in range(5):
        made.stage("written", "placed", {"n": 1})
    return made


def copied(w: World) -> str:
    """Another journal with the same in it."""
    url = w.place()
    w.journal.backup(url)
    return url


def folder(w: World) -> Path:
    return Path(tempfile.mkdtemp()) / "copy"


def exported(w: World) -> tuple[Path, str]:
    """An export of a log, and where a journal can be that has none of it."""
    path = folder(w)
    w.journal.export(path, topics=["rebuilt"])
    return path, w.place()


def import_(w: World, given: tuple[Path, str]) -> Many:
    with penstock.open(given[1]) as target:
        return Many(target.import_(given[0]).imported)


def subscribed(w: World) -> Subscription:
    return w.log.subscribe(after=w.log.latest - 5)


def subscribed_across(w: World) -> EventFollower:
    return w.journal.subscribe(["log", "rebuilt"], {"log": w.log.latest - 5, "rebuilt": w.size - 5})


def following_all(w: World) -> EventFollower:
    events = w.journal.subscribe(after="latest")
    assert events.next(0) is None
    return events


def told_of_one(w: World, events: EventFollower) -> None:
    w.written.append("placed", {"n": 1})
    event = events.next(0)
    assert event is not None and event.topic == "written"


def follow(w: World, events: EventFollower) -> Many:
    found = size(iter(lambda: events.next(0), None))
    events.close()
    return found


Job = tuple[Worker, threading.Event]


def topic_worker(w: World) -> Job:
    done, consumer = threading.Event(), new("worker")
    w.log.commit(consumer, w.log.latest - 2)
    return w.log.worker(consumer, lambda events: done.set()), done


def reactor(w: World) -> Job:
    done, consumer = threading.Event(), new("reactor")
    w.log.commit(consumer, w.log.latest - 1)
    return w.log.react(consumer, lambda event: done.set()), done


def work(w: World, job: Job) -> None:
    """Lets a worker work until its handler was called."""
    worker, done = job
    worker.start()
    assert done.wait(300)
    worker.stop()


def run_worker(w: World) -> None:
    consumer = new("worker")
    w.log.commit(consumer, w.log.latest - 2)
    worker = w.log.worker(consumer, lambda events: threading.Thread(target=worker.stop).start())
    worker.run()


def run_worker_async(w: World) -> None:
    consumer = new("worker")
    w.log.commit(consumer, w.log.latest - 2)
    worker = w.log.worker(consumer, lambda events: threading.Thread(target=worker.stop).start())
    asyncio.run(worker.run_async())


def allow(draft: Draft) -> None:
    """A gate that refuses nothing."""


def open_gate(w: World) -> None:
    w.topic("emptied").gate(allow)


def verified(w: World) -> Any:
    topic = w.topic("verified")
    topic.verify()
    return topic.get(w.size // 2)


def together() -> GatherRequest:
    calls = [FirstCall("settled", "add", [1, 2]) for _ in range(3)]
    return GatherRequest(uuid4().hex, calls, [NextCall("settled", "add", [3])])


JOURNALS = [
    Row("open", lambda w, url: penstock.open(url).close(), copied),
    Row("copy", lambda w, url: Many(penstock.copy(url, w.place()).rows), copied),
    Row("describe", lambda w: penstock.describe(w.place())),
    Row("Journal.id", lambda w: w.journal.id),
    Row("Journal.closed", lambda w: w.journal.closed),
    Row("Journal.close", lambda w, journal: journal.close(), lambda w: penstock.open(copied(w))),
    Row("Journal.topic", lambda w: w.journal.topic("log")),
    Row("Journal.topics", lambda w: size(w.journal.topics())),
    Row("Journal.drop_topic", lambda w: w.journal.drop_topic("dropped", force=True)),
    Row("Journal.queue", lambda w: w.journal.queue("jobs")),
    Row("Journal.queue(new)", lambda w: w.journal.queue(new("queue"))),
    Row("Journal.queues", lambda w: size(w.journal.queues())),
    Row("Journal.outbox", lambda w: w.journal.outbox()),
    Row("Journal.transaction", transaction),
    Row("Journal.fence", fence),
    Row("Journal.mark", lambda w: w.journal.mark("mark")),
    Row("Journal.read", lambda w: size(w.journal.read())),
    Row("Journal.read(topics=)", lambda w: size(w.journal.read("log", limit=5))),
    Row("Journal.read(after=)", lambda w: size(w.journal.read("lo*", {"log": w.size // 2}, limit=5))),
    Row("Journal.read(limit=)", lambda w: size(w.journal.read(limit=5)), grows=TOPICS_MERGED),
    Row("Journal.read(key=)", lambda w: size(w.journal.read(["log", "rebuilt"], key=w.middle))),
    Row("Journal.subscribe", follow, subscribed_across),
    Row("Journal.commit", lambda w: w.journal.commit("consumer 7", {"log": w.log.latest, "written": 1})),
    Row("Journal.cursor", lambda w: w.journal.cursor("consumer 8"), grows=TOPICS_MERGED),
    Row("Journal.correlated", lambda w: size(w.journal.correlated(w.chain))),
    Row("Journal.correlated(none)", lambda w: size(w.journal.correlated("no chain"))),
    Row("Journal.graph", lambda w: w.journal.graph(w.chain)),
    Row("Journal.sql", lambda w: Many(sql(w, "from log").num_rows)),
    Row("Journal.sql(key)", lambda w: sql(w, "select max(seq) from log where key = ?", w.middle)),
    Row("Journal.sql(seq)", lambda w: sql(w, "select kind from log where seq = ?", w.size // 2)),
    Row("Journal.task", lambda w: w.journal.task(next(iter(w.queue("jobs"))).id)),
    Row("Journal.push_together", lambda w: size(w.journal.push_together(together()))),
    Row("Journal.task(unknown)", lambda w: w.journal.task("018bcfe5-6800-76ca-9cd3-91dd7c4312f0")),
    Row("Journal.pressure", lambda w: w.journal.pressure()),
    Row("Journal.describe", lambda w: size(w.journal.describe().topics)),
    Row("Journal.stats", lambda w: everything(w, w.journal.stats())),
    Row("Journal.flush", lambda w: w.journal.flush()),
    Row("Journal.maintain", lambda w, url: maintain(url) or Many(w.size), copied),
    Row("Journal.maintain(again)", lambda w, url: maintain(url) or size(w.journal.topics()), lambda w: maintained(w)),
    Row("Journal.backup", lambda w: w.journal.backup(w.place()) or Many(w.size)),
    Row("Journal.copy_to", lambda w: Many(w.journal.copy_to(w.place()).rows)),
    Row("Journal.export", lambda w, path: Many(w.journal.export(path, topics=["rebuilt"]).events), folder),
    Row("Journal.import_", import_, exported),
]


def maintain(url: str) -> None:
    with penstock.open(url) as journal:
        journal.maintain()


def maintained(w: World) -> str:
    url = copied(w)
    maintain(url)
    return url


def everything(w: World, sample: Any) -> Many:
    """What a sample tells of."""
    cursors = sum(len(topic.lags) for topic in sample.topics.values())
    return Many(len(sample.topics) + sum(map(len, sample.queues.values())) + cursors)


TOPICS = [
    Row("Topic.append", lambda w: w.written.append("placed", {"n": 1})),
    Row("Topic.append(key=)", lambda w: w.written.append("placed", {"n": 1}, key=w.middle)),
    Row("Topic.append(dedup=)", lambda w: w.topic("window").append("placed", dedup=new("dedup"))),
    Row(
        "Topic.append(expect=)",
        lambda w, at: w.written.append("paid", key=w.middle, expect=at),
        lambda w: w.written.position_of(w.middle),
    ),
    Row("Topic.append(cause=)", lambda w, cause: w.written.append("paid", cause=cause), lambda w: w.log.get(2)),
    Row("Topic.correlated", lambda w: size(w.log.correlated(w.chain))),
    Row("Topic.append(cause=id)", lambda w, id: w.written.append("paid", cause=id), lambda w: w.log.get(2).id),
    Row("Topic.append_many", lambda w: size(w.written.append_many(drafts()))),
    Row("Topic.submit", lambda w: w.written.submit("placed").result()),
    Row("Topic.submit_many", lambda w: size(w.written.submit_many(drafts()).result())),
    Row("Topic.try_submit", lambda w: w.written.try_submit("placed").result()),
    Row("Topic.try_submit_many", lambda w: size(w.written.try_submit_many(drafts()).result())),
    Row("Topic.latest", lambda w: w.log.latest),
    Row("Topic.oldest", lambda w: w.log.oldest),
    Row("Topic.__len__", lambda w: len(w.log)),
    Row("Topic.read", lambda w: size(w.log.read())),
    Row("Topic.read(limit=)", lambda w: size(w.log.read(limit=5))),
    Row("Topic.read(after=)", lambda w: size(w.log.read(w.size // 2, limit=5))),
    Row("Topic.read(through=)", lambda w: size(w.log.read(through=5))),
    Row("Topic.read(reverse=)", lambda w: size(w.log.read(limit=5, reverse=True))),
    Row("Topic.read(key=)", lambda w: size(w.log.read(key=w.middle))),
    Row(
        "Topic.read(key= just opened)",
        lambda w, journal: size(journal.topic("log").read(key=w.middle)),
        lambda w: penstock.open(copied(w)),
        grows="reads four bytes of each event that is in no run of the index; housekeeping keeps these few",
    ),
    Row("Topic.read(key= none)", lambda w: size(w.log.read(key="no such key"))),
    Row("Topic.read(key_prefix=)", lambda w: size(w.log.read(key_prefix=w.middle)), grows=UNINDEXED),
    Row("Topic.read(key_prefix= none)", lambda w: size(w.log.read(key_prefix="no such key")), grows=UNINDEXED),
    Row("Topic.read(kind=)", lambda w: size(w.log.read(kind="refunded"))),
    Row("Topic.read(kind= none)", lambda w: size(w.log.read(kind="no such kind"))),
    Row("Topic.read(scope=)", lambda w: size(w.log.read(scope="rare"))),
    Row("Topic.read(scope= none)", lambda w: size(w.log.read(scope="no such scope"))),
    Row("Topic.read(since=)", lambda w: size(w.log.read(since=datetime.fromtimestamp(w.clock.now_ms() / 1000, UTC)))),
    Row("Topic.read(where= a key)", lambda w: size(w.log.read(where=f"key == '{w.middle}' and payload.n > 0"))),
    Row("Topic.read(where= a kind)", lambda w: size(w.log.read(where="kind in ('refunded', 'lost')"))),
    Row(
        "Topic.read(where=)",
        lambda w: size(w.log.read(where="payload.n == -1", limit=5)),
        grows="a condition on the payload is asked of every event: narrow it by key, kind, scope or time",
    ),
    Row("Topic.read_arrow", lambda w: Many(sum(batch.num_rows for batch in w.log.read_arrow()))),
    Row("Topic.read_arrow(after=)", lambda w: list(w.log.read_arrow(w.size // 2, limit=5))),
    Row("Topic.get", lambda w: w.log.get(w.size // 2)),
    Row("Topic.find", lambda w, id: w.log.find(id), lambda w: w.log.get(w.size // 2).id),
    Row("Topic.position_at", lambda w, at: w.log.position_at(at), lambda w: w.log.get(w.size // 2).recorded_at),
    Row("Topic.subscribe", follow, subscribed),
    Row("Topic.commit", lambda w: w.log.commit("consumer 2", w.log.latest)),
    Row("Topic.seek", lambda w: w.log.seek("consumer 3", 5)),
    Row("Topic.forget", lambda w: w.log.forget("consumer 4")),
    Row("Topic.cursor", lambda w: w.log.cursor("consumer 5")),
    Row("Topic.cursors", lambda w: size(w.log.cursors())),
    Row("Topic.consumers", lambda w: size(w.log.consumers())),
    Row("Topic.lag", lambda w: w.log.lag("consumer 5")),
    Row("Topic.left", lambda w: w.log.left(w.size // 2)),
    Row("Topic.worker", work, topic_worker),
    Row("Topic.settings", lambda w: w.log.settings),
    Row("Topic.configure", lambda w: w.log.configure(max_events=10_000_000)),
    Row("Topic.configure(dedup_window=)", lambda w: w.topic("window").configure(dedup_window=30 * 86_400)),
    Row("Topic.compact", lambda w: w.topic("compact").compact(5)),
    Row("Topic.compact(all)", lambda w: Many(w.topic("emptied").compact(w.size).removed)),
    Row("Topic.compact_keys", lambda w: Many(w.topic("compact_keys").compact_keys())),
    Row(
        "Topic.compact_keys(again)",
        lambda w: w.topic("compact_keys").compact_keys(),
        grows="reads the topic, to find the newest event of every key",
    ),
    Row(
        "Topic.erase", lambda w: w.topic("erased").erase(key=w.middle), grows="rewrites the blocks that hold the events"
    ),
    Row(
        "Topic.mask", lambda w: w.topic("erased").mask(["n"], seqs=[5]), grows="rewrites the block that holds the event"
    ),
    Row("Topic.position_of", lambda w: w.log.position_of(w.middle)),
    Row("Topic.position_of(none)", lambda w: w.log.position_of("no such key")),
    Row("Topic.entities", lambda w: size(w.log.entities())),
    Row("Topic.reindex", lambda w: w.topic("reindex").reindex() or Many(w.size)),
    Row("Topic.project", lambda w: w.log.project(Count, w.middle)),
    Row("Topic.project(new)", lambda w: w.log.project(Count, f"key {w.size // 4}")),
    Row("Topic.project_if_changed", lambda w: w.log.project_if_changed(Count, w.middle, 0)),
    Row("Topic.watch", lambda w: w.log.watch(Count, w.middle).close()),
    Row("Topic.rebuild", lambda w: Many(w.topic("rebuilt").rebuild(Count).events)),
    Row("Topic.verify_states", lambda w: w.topic("rebuilt").verify_states(Count) or Many(w.size)),
    Row("Topic.ancestors", lambda w, event: size(w.log.ancestors(event)), lambda w: w.log.get(w.size + 2)),
    Row("Topic.ancestors(id)", lambda w, id: size(w.log.ancestors(id)), lambda w: w.log.get(w.size + 2).id),
    Row("Topic.ancestors(none)", lambda w: size(w.log.ancestors("0190163d-8694-739b-aea5-966c26f8ad91"))),
    Row("Topic.effects", lambda w, event: size(w.log.effects(event)), lambda w: w.log.get(w.size + 1)),
    Row("Topic.effects(none)", lambda w, event: size(w.log.effects(event)), lambda w: w.log.get(w.size + 2)),
    Row("Topic.verify", lambda w: Many(w.topic("verified").verify().unhashed)),
    Row(
        "Topic.check",
        lambda w, receipt: w.topic("verified").check(receipt),
        lambda w: w.topic("verified").append("placed"),
    ),
    Row(
        "Topic.proof",
        lambda w, event: w.topic("verified").proof(event),
        verified,
        grows="hashes the whole topic anew, unless it is verified",
    ),
    Row("Topic.react", work, reactor),
    Row("Topic.gate", open_gate),
    Row("Topic.ungate", lambda w: w.topic("emptied").ungate(allow)),
]


def in_transaction(use: Any) -> Any:
    """One use of a transaction, with what begins and ends it."""

    def run(w: World) -> int | None:
        with w.journal.transaction() as tx:
            return use(w, tx)

    return run


def settle(how: str) -> Any:
    def run(w: World, delivery: Any) -> None:
        with w.journal.transaction() as tx:
            getattr(tx, how)(delivery)

    return run


def refused_sql(w: World, tx: Any) -> None:
    """The rows of a program's own tables cost what SQLite takes; here is the call, which memory refuses."""
    with suppress(ConfigError):
        tx.sql("select 1")


TRANSACTIONS = [
    Row("Transaction.append", in_transaction(lambda w, tx: tx.append("written", "placed"))),
    Row("Transaction.append_many", in_transaction(lambda w, tx: size(tx.append_many("written", drafts())))),
    Row("Transaction.commit", in_transaction(lambda w, tx: tx.commit("log", "consumer 6", w.log.latest))),
    Row("Transaction.cursor", in_transaction(lambda w, tx: tx.cursor("log", "consumer 6"))),
    Row("Transaction.read", in_transaction(lambda w, tx: size(tx.read("log", key=w.middle)))),
    Row("Transaction.get_mark", in_transaction(lambda w, tx: tx.get_mark("mark"))),
    Row("Transaction.set_mark", in_transaction(lambda w, tx: tx.set_mark("mark", 1))),
    Row("Transaction.sql", in_transaction(refused_sql)),
    Row("Transaction.push", in_transaction(lambda w, tx: tx.push("settled", 1))),
    Row("Transaction.push_many", in_transaction(lambda w, tx: size(tx.push_many("settled", range(5))))),
    Row("Transaction.ack", settle("ack"), lambda w: w.queue("settled").take()),
    Row("Transaction.nack", settle("nack"), lambda w: w.queue("settled").take()),
    Row("Transaction.take", in_transaction(lambda w, tx: tx.take("settled") and None)),
    Row("Transaction.take_many", in_transaction(lambda w, tx: size(tx.take_many("settled", 5)))),
    Row("Transaction.extend", settle("extend"), lambda w: w.queue("settled").take()),
    Row("Transaction.release", settle("release"), lambda w: w.queue("settled").take()),
    Row("Transaction.purge", in_transaction(lambda w, tx: Many(tx.purge("purged")))),
    Row("Transaction.move", in_transaction(lambda w, tx: Many(tx.move("moved", "settled", limit=2)))),
    Row("Transaction.redrive", in_transaction(lambda w, tx: Many(tx.redrive("lost", limit=2)))),
    Row("Outbox.stage", lambda w, box: box.stage("written", "placed"), outbox),
    Row("Outbox.clear", lambda w, box: box.clear(), outbox),
    Row("Outbox.flush", lambda w, box: size(box.flush()), outbox),
    Row("Outbox.submit", lambda w, box: size(box.submit().result()), outbox),
    Row("Outbox.__len__", lambda w, box: len(box), outbox),
]


def fenced(w: World) -> Any:
    held = w.journal.fence(exclusive=False)
    held.submit("written", "placed", {"n": 1})
    return held


def watched(w: World) -> Watch[Count]:
    return w.log.watch(Count, w.middle)


HANDLES = [
    Row("Fence.submit", lambda w, held: held.submit("written", "placed") and held.cancel(), fenced),
    Row("Fence.outbox", lambda w, held: held.outbox() and held.cancel(), fenced),
    Row("Fence.commit", lambda w, held: size(held.commit()), fenced),
    Row("Fence.cancel", lambda w, held: held.cancel(), fenced),
    Row("Fence.state", lambda w, held: held.state and held.cancel(), fenced),
    Row("Fence.exclusive", lambda w, held: held.exclusive or held.cancel(), fenced),
    Row("Fence.__len__", lambda w, held: len(held) and held.cancel(), fenced),
    Row("Subscription.next", lambda w, events: events.next(0), subscribed),
    Row("Subscription.next_async", lambda w, events: asyncio.run(events.next_async(0)), subscribed),
    Row("Subscription.position", lambda w, events: events.position, subscribed),
    Row("Subscription.close", lambda w, events: events.close(), subscribed),
    Row("Subscription.__iter__", lambda w, events: next(iter(events)), subscribed),
    Row("JournalSubscription.next", lambda w, events: events.next(0), subscribed_across),
    Row("JournalSubscription.next(of all topics)", told_of_one, following_all),
    Row("JournalSubscription.next_async", lambda w, events: asyncio.run(events.next_async(0)), subscribed_across),
    Row("JournalSubscription.positions", lambda w, events: events.positions, subscribed_across),
    Row("JournalSubscription.close", lambda w, events: events.close(), subscribed_across),
    Row("JournalSubscription.__iter__", lambda w, events: next(iter(events)), subscribed_across),
    Row("Watch.next", lambda w, states: states.next(0), watched),
    Row("Watch.next_async", lambda w, states: asyncio.run(states.next_async(0)), watched),
    Row("Watch.close", lambda w, states: states.close(), watched),
    Row("Watch.__iter__", lambda w, states: next(iter(states)), watched),
    Row("Worker.start", work, topic_worker),
    Row("Worker.stop", work, topic_worker),
    Row("Worker.stop_async", lambda w, job: asyncio.run(job[0].stop_async()), topic_worker),
    Row("Worker.run", run_worker),
    Row("Worker.run_async", run_worker_async),
    Row("Worker.alive", lambda w, job: job[0].alive, topic_worker),
]

ROWS = [*JOURNALS, *TOPICS, *TRANSACTIONS, *HANDLES]
