"""Spans of appends, takes and handlers, with the real OpenTelemetry SDK in a process of its own.

A tracer provider is set once for a process, so each test runs a program that sets one and prints the spans it made.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

SETUP = """
import json, sys, threading, time
import penstock
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
tracer = trace.get_tracer("shop")

def until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)

def told():
    spans = []
    for span in exporter.get_finished_spans():
        spans.append({
            "name": span.name, "kind": span.kind.name, "id": f"{span.context.span_id:016x}",
            "trace": f"{span.context.trace_id:032x}",
            "parent": None if span.parent is None else f"{span.parent.span_id:016x}",
            "status": span.status.status_code.name, "about": dict(span.attributes),
            "links": [f"{link.context.span_id:016x}" for link in span.links],
            "errors": [event.attributes["exception.message"] for event in span.events],
            "seconds": (span.end_time - span.start_time) / 1e9,
        })
    print(json.dumps(spans))
"""


def spans_of(program: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-c", SETUP + program], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Failed to detach" not in done.stderr, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def named(spans: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [span for span in spans if span["name"] == name]


def test_a_message_is_followed_from_the_push_through_the_take_to_the_handler() -> None:
    spans = spans_of("""
with penstock.open("memory:") as journal:
    queue = journal.queue("emails")
    with tracer.start_as_current_span("checkout"):
        queue.push({"to": "ann"})
    assert queue.get(1).headers["traceparent"]
    seen = []
    def handle(delivery):
        seen.append(1)
        journal.topic("sent").append("mail.sent")
        if len(seen) == 1:
            raise ValueError("mailbox full")
    worker = queue.worker(handle).start()
    until(lambda: len(seen) == 2 and len(queue) == 0)
    worker.stop()
told()
""")
    (checkout,) = named(spans, "checkout")
    (push,) = named(spans, "send emails")
    assert (push["parent"], push["kind"], push["status"]) == (checkout["id"], "PRODUCER", "OK")
    assert push["about"]["messaging.system"] == "penstock" and push["about"]["messaging.operation.name"] == "push"
    takes = named(spans, "receive emails")
    assert [take["links"] for take in takes] == [[push["id"]], [push["id"]]]
    failed, handled = named(spans, "process emails")
    assert (failed["parent"], failed["trace"], failed["kind"]) == (push["id"], checkout["trace"], "CONSUMER")
    assert failed["status"] == "ERROR" and failed["errors"] == ["mailbox full"]
    assert handled["status"] == "OK" and handled["about"]["penstock.attempt"] == 2
    # What a handler appends is part of the same trace.
    assert [one["parent"] for one in named(spans, "send sent")] == [failed["id"], handled["id"]]


def test_appends_batches_topic_workers_and_coroutines_have_spans() -> None:
    spans = spans_of("""
import asyncio
with penstock.open("memory:") as journal:
    topic, queue = journal.topic("orders"), journal.queue("jobs")
    topic.append_many([penstock.Draft("placed"), penstock.Draft("placed")])
    try:
        topic.append("placed", object())
    except penstock.errors.ConfigError:
        pass
    assert queue.take() is None and queue.take(wait=0.01) is None
    queue.push_many([1, 2, 3])
    assert len(queue.take_many(2)) == 2
    topics = topic.worker("billing", lambda events: journal.topic("bills").append("billed")).start()
    until(lambda: topic.cursor("billing") == 2)
    topics.stop()
    async def handle(delivery):
        await asyncio.sleep(0)
        await journal.topic("done").submit("did")
        journal.topic("done").append("did")
    jobs = queue.worker(handle).start()
    until(lambda: journal.topic("done").latest == 2 and queue.stats().ready == 0)
    jobs.stop()
told()
""")
    many, refused = named(spans, "send orders")
    assert many["about"]["messaging.batch.message_count"] == 2
    assert refused["status"] == "ERROR" and "cannot be written as JSON" in refused["errors"][0]
    # A take that finds nothing is no news.
    receives = named(spans, "receive jobs")
    assert [span["about"]["messaging.batch.message_count"] for span in receives] == [2, 1]
    (bill,) = named(spans, "process orders")
    assert bill["parent"] == many["id"] and named(spans, "send bills")[0]["parent"] == bill["id"]
    (job,) = named(spans, "process jobs")
    assert named(spans, "send done")[0]["parent"] == job["id"] and job["status"] == "OK"


def test_a_context_that_came_in_headers_is_the_parent_and_stays() -> None:
    spans = spans_of("""
given = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
with penstock.open("memory:") as journal:
    journal.topic("orders").append("placed", headers={"traceparent": given})
    assert next(journal.topic("orders").read()).headers["traceparent"] == given
told()
""")
    assert [(span["trace"], span["parent"]) for span in spans] == [
        ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")
    ]


def test_without_a_provider_there_are_no_spans_and_no_headers() -> None:
    program = """
import opentelemetry.trace, penstock
with penstock.open("memory:") as journal:
    journal.topic("orders").append("placed")
    queue = journal.queue("jobs")
    queue.push(1)
    queue.take().ack()
    assert dict(next(journal.topic("orders").read()).headers) == {}
    import sys
    assert not any(name.startswith("opentelemetry.sdk") for name in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
