"""The counters of queues, in the process's registry."""

from __future__ import annotations

from penstock.core.observe.metrics import REGISTRY

pushed = REGISTRY.counters("queue.pushed", "messages pushed", ("queue",))
delivered = REGISTRY.counters("queue.delivered", "messages handed out", ("queue",))
acked = REGISTRY.counters("queue.acked", "messages acknowledged", ("queue",))
nacked = REGISTRY.counters("queue.nacked", "attempts that failed", ("queue", "outcome"))
in_flight = REGISTRY.gauges(
    "queue.in_flight", "messages in flight, as of the last look at the queue's stats", ("queue",)
)

breaker_opened = REGISTRY.counters("queue.breaker_opened", "times a circuit breaker opened", ("queue",))
breaker_open = REGISTRY.gauges(
    "queue.breaker_open",
    "1 while a circuit breaker is open, 0.5 half-open, 0 closed, as of the last look at the queue's stats",
    ("queue", "group"),
)

waits_started = REGISTRY.counter("queue.wait_started", "takes that began to wait")
waits_woken = REGISTRY.counter("queue.wait_woken", "waiting takes that found something")
waits_timed_out = REGISTRY.counter("queue.wait_timed_out", "waiting takes whose time was up")
waits_cancelled = REGISTRY.counter("queue.wait_cancelled", "waiting takes ended by closing the journal")
wait_seconds = REGISTRY.histogram(
    "queue.wait_seconds", "how long takes waited", (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 60.0)
)

handled = REGISTRY.counters("queue.handled", "messages that worker handlers finished", ("queue", "outcome"))
handling_seconds = REGISTRY.histograms("queue.handling_seconds", "how long worker handlers took", ("queue",))
