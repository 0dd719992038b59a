"""What is wrong with a journal, in words: one finding for each thing that wants a person's attention.

The console shows findings in its first line, `penstock check` warns of them. A finding names its subject, so that each
of them can lead there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Final, get_args

from penstock.observe.pipelines import FlowStatus
from penstock.observe.sample import Finding, FindingKind, Sample
from penstock.observe.workers import WorkerFailure
from penstock.units import show_duration, show_size

DISK_SHARE: Final = 0.05
"""A file system with a smaller share free is nearly full…"""
DISK_BYTES: Final = 4 << 30
"""…unless more than this is free."""
TTL_SHARE: Final = 0.5
"""The share of its time to live after which a message that still waits is worth a word."""
GROWING_LAG: Final = 1_000
"""A lag below this is not watched for growth."""
GROWING_STEPS: Final = 3
"""How many samples in a row, a minute apart, a lag must grow for."""

KINDS: Final = get_args(FindingKind)

Lags = dict[tuple[str, str], int]
"""How far each consumer of each topic is behind, by topic and consumer."""


def examine(sample: Sample, flows: Iterable[FlowStatus] = ()) -> list[Finding]:
    """Everything that is wrong at one time, gravest kind first, the largest number first within a kind."""
    now = datetime.fromtimestamp(sample.at, UTC)
    found = [*_disk(sample), *_unreadable(sample), *_flows(flows, now), *_workers(sample.workers), *_queues(sample)]
    return sorted(found, key=lambda one: (KINDS.index(one.kind), -one.count, one.subject))


def _disk(sample: Sample) -> Iterable[Finding]:
    free, total = sample.disk_free, sample.disk_total
    if free is not None and total and free < DISK_BYTES and free < DISK_SHARE * total:
        yield Finding("disk", "", f"the disk is nearly full: {show_size(free)} of {show_size(total)} are free", free)


def _unreadable(sample: Sample) -> Iterable[Finding]:
    for topic, why in sample.unreadable.items():
        yield Finding("unreadable", topic, f"topic {topic} cannot be read: {why}", 1)


def _flows(flows: Iterable[FlowStatus], now: datetime) -> Iterable[Finding]:
    for flow in flows:
        state = flow.believed(now)
        if state == "failed":
            yield Finding("pipeline", flow.key, f"pipeline {flow.key} failed", 1)
        elif state == "silent":
            yield Finding("pipeline", flow.key, f"pipeline {flow.key} has not reported for a minute", 1)
        elif state == "waiting":
            times = "" if not flow.restarts else f", for the {_ordinal(flow.restarts + 1)} time"
            yield Finding("pipeline", flow.key, f"pipeline {flow.key} is restarting{times}", 1)


def _workers(workers: Iterable[WorkerFailure]) -> Iterable[Finding]:
    for one in workers:
        yield Finding("worker", one.worker, f"worker {one.worker} gave up: {one.error}", 1)


def _queues(sample: Sample) -> Iterable[Finding]:
    for groups in sample.queues.values():
        for group in groups:
            name = group.name if group.group == "default" else f"{group.name}/{group.group}"
            if group.dead:
                what = "dead letter" if group.dead == 1 else "dead letters"
                yield Finding("dead", group.name, f"{group.dead:,} {what} from {name}", group.dead, group.group)
            if group.failed:
                what = "message of {} failed" if group.failed == 1 else "messages of {} failed"
                says = f"{group.failed:,} {what.format(name)}"
                yield Finding("failed", group.name, says, group.failed, group.group)
            if group.paused:
                says = f"{name} is paused: {_waiting(group.ready)}"
                yield Finding("paused", group.name, says, group.ready, group.group)
            if group.ttl is not None and group.oldest_age is not None and group.oldest_age > TTL_SHARE * group.ttl:
                waits, ttl = show_duration(group.oldest_age), show_duration(group.ttl)
                says = f"the oldest message of {name} waits for {waits}; messages expire after {ttl}"
                yield Finding("oldest", group.name, says, round(group.oldest_age), group.group)


def _waiting(ready: int) -> str:
    return f"{ready:,} {'message is' if ready == 1 else 'messages are'} ready"


def growing(samples: Sequence[Lags]) -> list[Finding]:
    """Consumers that fell further behind from each sample to the next; the samples are about a minute apart."""
    if len(samples) <= GROWING_STEPS:
        return []
    recent = samples[-GROWING_STEPS - 1 :]
    found = []
    for (topic, consumer), lag in recent[-1].items():
        past = [sample.get((topic, consumer), 0) for sample in recent]
        if lag >= GROWING_LAG and all(low < high for low, high in pairwise(past)):
            says = f"{consumer} falls behind in {topic}: {lag:,} events, {past[0]:,} a few minutes ago"
            found.append(Finding("lag", topic, says, lag, consumer))
    return sorted(found, key=lambda one: (-one.count, one.subject))


def lags_of(sample: Sample) -> Lags:
    """Every consumer's lag in a sample."""
    return {
        (topic.name, consumer): lag for topic in sample.topics.values() for consumer, lag in topic.lags.items() if lag
    }


def _ordinal(number: int) -> str:
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th') }"
