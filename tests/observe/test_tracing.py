"""Trace context travels in event headers, with the real OpenTelemetry."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import SpanContext, TraceFlags
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.trace.span import NonRecordingSpan, TraceState

import penstock
from penstock.core.observe.tracing import context_of
from server.serving import serving


@pytest.fixture(scope="module")
def tracer() -> Iterator[trace.Tracer]:
    provider = TracerProvider()
    yield provider.get_tracer("shop")
    provider.shutdown()


@pytest.fixture
def journal() -> Iterator[penstock.Journal]:
    with penstock.open("memory:") as opened:
        yield opened


def parent(span: trace.Span) -> str:
    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier, trace.set_span_in_context(span))
    return carrier["traceparent"]


def test_what_is_appended_in_a_span_says_so(journal: penstock.Journal, tracer: trace.Tracer) -> None:
    topic = journal.topic("orders")
    with tracer.start_as_current_span("checkout") as span:
        topic.append("plain")
        topic.append("keyed", {"a": 1}, key="k")
        topic.append("headed", headers={"source": "web"})
        topic.append_many([penstock.Draft("many"), penstock.Draft("many", headers={"x": "y"})])
        journal.queue("emails").push("hello")
        with journal.transaction() as tx:
            tx.append("orders", "together")
    events = [*topic.read(), *journal.topic("emails").read()]
    assert len(events) == 7
    assert {event.headers["traceparent"] for event in events} == {parent(span)}
    assert events[2].headers["source"] == "web" and events[4].headers["x"] == "y"
    assert "tracestate" not in events[0].headers


def test_outside_a_span_nothing_is_added(journal: penstock.Journal) -> None:
    journal.topic("orders").append("plain")
    journal.topic("orders").append_many([penstock.Draft("many", headers={"a": "b"})])
    assert [dict(event.headers) for event in journal.topic("orders").read()] == [{}, {"a": "b"}]


def test_a_context_the_caller_gives_is_kept(journal: penstock.Journal, tracer: trace.Tracer) -> None:
    own = "00-" + "1" * 32 + "-" + "2" * 16 + "-01"
    with tracer.start_as_current_span("checkout"):
        journal.topic("orders").append("k", headers={"traceparent": own})
    assert dict(next(journal.topic("orders").read()).headers) == {"traceparent": own}


def test_state_of_other_vendors_travels_along(journal: penstock.Journal) -> None:
    context = SpanContext(7, 8, is_remote=True, trace_flags=TraceFlags(1), trace_state=TraceState([("vendor", "x")]))
    with trace.use_span(NonRecordingSpan(context)):
        journal.topic("orders").append("k")
    assert next(journal.topic("orders").read()).headers["tracestate"] == "vendor=x"


def test_the_trace_goes_on_where_the_event_is_read(journal: penstock.Journal, tracer: trace.Tracer) -> None:
    with tracer.start_as_current_span("checkout") as first:
        journal.queue("emails").push("hello")
    delivery = journal.queue("emails").take()
    assert delivery is not None
    with tracer.start_as_current_span("send", context=context_of(delivery.event)) as second:
        assert second.get_span_context().trace_id == first.get_span_context().trace_id
    journal.topic("untraced").append("k")
    nothing = context_of(next(journal.topic("untraced").read()))
    assert not trace.get_current_span(nothing).get_span_context().is_valid


def test_it_crosses_http(journal: penstock.Journal, tracer: trace.Tracer) -> None:
    with serving(journal) as served, penstock.open(served.url) as remote, tracer.start_as_current_span("far") as span:
        remote.topic("orders").append("k")
        remote.topic("orders").submit("k").result(60)
        remote.queue("emails").push("hello")
        remote.queue("emails").submit("hello").result(60)
        remote.queue("emails").push_many(["hello"])
    events = [event for topic in ("orders", "emails") for event in journal.topic(topic).read()]
    assert [event.headers.get("traceparent") for event in events] == [parent(span)] * 5


def test_nobody_who_does_not_trace_pays_for_the_import(tmp_path: Path) -> None:
    program = (
        "import sys, penstock\n"
        "with penstock.open('memory:') as journal: journal.topic('t').append('k')\n"
        "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0
