"""What Prometheus scrapes: the process's counters, and the journal's present state as gauges."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.metrics import REGISTRY, Registry

if TYPE_CHECKING:
    from penstock.observed import Sample
    from penstock.server.service import Service


def exposition(service: Service) -> str:
    """Everything in Prometheus's text format."""
    service.sampler.start()
    return REGISTRY.prometheus_text() + state(service.sampler.newest, service).prometheus_text()


def state(sample: Sample, service: Service) -> Registry:
    """A sample as gauges; a registry of its own, so that what is gone is not reported for ever."""
    registry = Registry()
    latest = registry.gauges("topic.latest", "the newest position of a topic", ("topic",))
    events = registry.gauges("topic.events", "events stored in a topic", ("topic",))
    lag = registry.gauges("consumer.lag", "events a consumer has not seen yet", ("topic", "consumer"))
    for topic in sample.topics.values():
        latest.labels(topic=topic.name).set(topic.latest)
        events.labels(topic=topic.name).set(topic.events)
        for consumer, behind in topic.lags.items():
            lag.labels(topic=topic.name, consumer=consumer).set(behind)
    ready = registry.gauges("queue.ready", "messages that could be taken now", ("queue", "group"))
    in_flight = registry.gauges("queue.leased", "messages held under a lease", ("queue", "group"))
    delayed = registry.gauges("queue.delayed", "messages that wait for their time", ("queue", "group"))
    failed = registry.gauges("queue.failed", "messages that were given up", ("queue", "group"))
    oldest = registry.gauges(
        "queue.oldest_age_seconds", "seconds since the oldest ready message was pushed", ("queue", "group")
    )
    for groups in sample.queues.values():
        for group in groups:
            labels = {"queue": group.name, "group": group.group}
            ready.labels(**labels).set(group.ready)
            in_flight.labels(**labels).set(group.in_flight)
            delayed.labels(**labels).set(group.delayed)
            failed.labels(**labels).set(group.failed)
            oldest.labels(**labels).set(group.oldest_age or 0.0)
    registry.gauge("writer.queued", "submissions that wait for the writer").set(sample.queued)
    registry.gauge("writer.utilization", "waiting submissions as a share of the writer's capacity").set(sample.pressure)
    registry.gauge("server.listeners", "live streams that are open").set(service.lives.listeners)
    registry.gauge("server.waiting", "requests that wait for a message").set(service.waiting)
    return registry
