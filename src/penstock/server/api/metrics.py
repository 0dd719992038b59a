"""What Prometheus scrapes: the process's counters, and the journal's present state as gauges."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.observe.collect import GAUGES, gauges
from penstock.observe.metrics import REGISTRY, Registry

if TYPE_CHECKING:
    from penstock.server.service import Service


def exposition(service: Service) -> str:
    """Everything in Prometheus's text format."""
    service.sampler.start()
    # The served journal's gauges stand for themselves, also when the program watches it (or another) in-process.
    counted = REGISTRY.prometheus_text(without={name for name, *_ in GAUGES})
    return counted + gauges(service.sampler.newest).prometheus_text() + own(service).prometheus_text()


def own(service: Service | None = None) -> Registry:
    """What the server itself is busy with."""
    registry = Registry()
    registry.gauge("server.listeners", "live streams that are open").set(service.live.listeners if service else 0)
    registry.gauge("server.waiting", "requests that wait for a message").set(service.waiting if service else 0)
    return registry
