"""Questions that every home refuses with the same error, whatever it holds; none of them changes anything."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import penstock
from model.topic_rules import Seen
from penstock import Draft, Journal
from penstock.errors import ConfigError, InvalidName, PolicyMismatch, StaleDelivery, UnknownQueue, UnknownTopic

NAIVE = datetime(2024, 5, 5)
Question = Callable[[Any], object]

OF_A_TOPIC: dict[str, tuple[Question, type[Exception]]] = {
    "append no kind": (lambda topic: topic.append(""), ConfigError),
    "append a naive time": (lambda topic: topic.append("paid", occurred_at=NAIVE), ConfigError),
    "append to expect without a key": (lambda topic: topic.append("paid", expect=0), ConfigError),
    "append a header that is no text": (lambda topic: topic.append("paid", headers={"h": 1}), ConfigError),
    "append a cause to come": (lambda topic: topic.append_many([Draft("paid", cause=0)]), ConfigError),
    "append for another topic": (lambda topic: topic.append_many([Draft("paid", topic="other")]), ConfigError),
    "append what is no draft": (lambda topic: topic.append_many(["paid"]), ConfigError),
    "read below nothing": (lambda topic: list(topic.read(-1)), ConfigError),
    "read half an event": (lambda topic: list(topic.read(0, 0.5)), ConfigError),
    "read less than nothing": (lambda topic: list(topic.read(0, -1)), ConfigError),
    "read through nothing": (lambda topic: list(topic.read(0, through=-1)), ConfigError),
    "read a key that is none": (lambda topic: list(topic.read(key=3)), ConfigError),
    "read kinds that are none": (lambda topic: list(topic.read(kind=[3])), ConfigError),
    "read a key and a prefix": (lambda topic: list(topic.read(key="x", key_prefix="x")), ConfigError),
    "read since a naive time": (lambda topic: list(topic.read(since=NAIVE)), ConfigError),
    "read where nothing": (lambda topic: list(topic.read(where="payload >")), ConfigError),
    "read where a field is none": (lambda topic: list(topic.read(where="total > 3")), ConfigError),
    "read where, not at all": (lambda topic: list(topic.read(0, 0, where="payload >")), ConfigError),
    "read where, of no kind": (lambda topic: list(topic.read(kind=[], where="payload >")), ConfigError),
    "read where, backwards": (lambda topic: list(topic.read(reverse=True, where="payload >")), ConfigError),
    "read a number of columns": (lambda topic: list(topic.read_arrow(0, batch_rows=0)), ConfigError),
    "read payloads as numbers": (lambda topic: list(topic.read_arrow(0, payload="int")), ConfigError),
    "get below nothing": (lambda topic: topic.get(-1), ConfigError),
    "find a number": (lambda topic: topic.find(3), ConfigError),
    "position at a naive time": (lambda topic: topic.position_at(NAIVE), ConfigError),
    "follow from nowhere": (lambda topic: topic.subscribe("soon"), ConfigError),
    "follow with no buffer": (lambda topic: topic.subscribe(buffer=0), ConfigError),
    "commit for nobody": (lambda topic: topic.commit("", 0), InvalidName),
    "commit below nothing": (lambda topic: topic.commit("c1", -1), ConfigError),
    "cursor of nobody": (lambda topic: topic.cursor(""), InvalidName),
    "forget nobody": (lambda topic: topic.forget(""), InvalidName),
    "configure what is none": (lambda topic: topic.configure(colour="red"), ConfigError),
    "keep less than nothing": (lambda topic: topic.configure(max_events=-1), ConfigError),
    "compact below nothing": (lambda topic: topic.compact(-1), ConfigError),
    "project what is none": (lambda topic: topic.project(dict, "x"), ConfigError),
    "project a key that is none": (lambda topic: topic.project(Seen, 3), ConfigError),
    "project since nothing": (lambda topic: topic.project_if_changed(Seen, "x", -1), ConfigError),
    "rebuild what is none": (lambda topic: topic.rebuild(dict), ConfigError),
}

OF_A_QUEUE: dict[str, tuple[Question, type[Exception]]] = {
    "push into the past": (lambda queue: queue.push(1, delay=-1), ConfigError),
    "push with both times": (
        lambda queue: queue.push(1, delay=1, not_before=penstock.core.clock.from_ms(10**12)),
        ConfigError,
    ),
    "push for a naive time": (lambda queue: queue.push(1, not_before=NAIVE), ConfigError),
    "push to no attempts": (lambda queue: queue.push(1, max_attempts=0), ConfigError),
    "push ahead of a key": (lambda queue: queue.push(1, key="k", priority="front"), ConfigError),
    "push to the back": (lambda queue: queue.push(1, priority="back"), ConfigError),
    "push for a kind that is none": (lambda queue: queue.push(1, kind=""), ConfigError),
    "take less than nothing": (lambda queue: queue.take_many(-1), ConfigError),
    "take for less than nothing": (lambda queue: queue.take(lease=-1), ConfigError),
    "take before now": (lambda queue: queue.take(wait=-1), ConfigError),
    "take for no group": (lambda queue: queue.take(group=""), InvalidName),
    "take for nobody": (lambda queue: queue.take(consumer=""), InvalidName),
    "claim before now": (lambda queue: queue.claim(min_idle=-1), ConfigError),
    "claim less than nothing": (lambda queue: queue.claim(min_idle=1, limit=-1), ConfigError),
    "a token that is none": (lambda queue: queue.delivery("nonsense"), StaleDelivery),
    "a token of nobody": (lambda queue: queue.delivery("a" * 24), StaleDelivery),
    "acknowledge a number": (lambda queue: queue.ack_many([3]), ConfigError),
    "get below nothing": (lambda queue: queue.get(-1), ConfigError),
    "peek at less than nothing": (lambda queue: queue.peek(-1), ConfigError),
    "messages in no state": (lambda queue: queue.messages("gone"), ConfigError),
    "less than no messages": (lambda queue: queue.messages(limit=-1), ConfigError),
    "messages before nothing": (lambda queue: queue.messages(after=-1), ConfigError),
    "redrive less than nothing": (lambda queue: queue.redrive(limit=-1), ConfigError),
    "redrive where nothing": (lambda queue: queue.redrive(where="payload >"), ConfigError),
    "move to itself": (lambda queue: queue.move(queue), ConfigError),
    "move less than nothing": (lambda queue: queue.move(queue.journal.queue("aside"), limit=-1), ConfigError),
    "discard below nothing": (lambda queue: queue.discard([-1]), ConfigError),
    "run what is nothing": (lambda queue: queue.run_now([-1]), ConfigError),
    "configure what is none": (lambda queue: queue.configure(colour="red"), ConfigError),
    "a lease of less than nothing": (lambda queue: queue.configure(lease=-1), ConfigError),
    "a rate that is none": (lambda queue: queue.configure(rate="fast"), ConfigError),
    "a retry that is none": (lambda queue: queue.configure(retry="soon"), ConfigError),
    "its own dead letters": (lambda queue: queue.configure(dead_letter="jobs"), ConfigError),
    "pause nobody": (lambda queue: queue.pause("nobody here"), ConfigError),
    "a group without a name": (lambda queue: queue.add_group(""), InvalidName),
    "a group before nothing": (lambda queue: queue.add_group("audit", after=-1), ConfigError),
    "a schedule of never": (lambda queue: queue.every(0, name="never"), ConfigError),
    "a schedule that is none": (lambda queue: queue.every("often", name="often"), ConfigError),
    "another lease": (lambda queue: queue.journal.queue("jobs", lease=77), PolicyMismatch),
}

OF_A_JOURNAL: dict[str, tuple[Callable[[Journal], object], type[Exception]]] = {
    "a topic without a name": (lambda journal: journal.topic(""), InvalidName),
    "a topic with a bad name": (lambda journal: journal.topic("a b\n"), InvalidName),
    "a queue without a name": (lambda journal: journal.queue(""), InvalidName),
    "a queue that is not there": (lambda journal: journal.queue("nobody", create=False), UnknownQueue),
    "a queue of an unknown policy": (lambda journal: journal.queue("fresh", colour="red"), ConfigError),  # type: ignore[call-arg]
    "a queue of two minds": (lambda journal: journal.queue("fresh", throttle=1, debounce=1), ConfigError),
    "drop what is not there": (lambda journal: journal.drop_topic("nobody"), UnknownTopic),
    "drop what has no name": (lambda journal: journal.drop_topic(""), InvalidName),
    "stage for no topic": (lambda journal: journal.outbox().stage("", "paid"), InvalidName),
}


def questions() -> Iterator[tuple[str, Callable[[Journal], object], type[Exception]]]:
    """Every question, its name, and the error it is refused with."""
    for name, (of_topic, error) in OF_A_TOPIC.items():
        yield f"topic: {name}", lambda journal, ask=of_topic: ask(journal.topic("a")), error
    for name, (of_queue, error) in OF_A_QUEUE.items():
        yield f"queue: {name}", lambda journal, ask=of_queue: ask(journal.queue("jobs")), error
    for name, (of_journal, error) in OF_A_JOURNAL.items():
        yield f"journal: {name}", of_journal, error
