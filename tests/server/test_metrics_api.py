"""`/metrics`: everything there is to see, in a form Prometheus reads."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

import penstock
from penstock.core.observe.metrics import watch
from server.serving import Served

EXPECTED = {
    "topic_appended",
    "topic_latest",
    "topic_events",
    "consumer_lag",
    "queue_pushed",
    "queue_delivered",
    "queue_acked",
    "queue_nacked",
    "queue_leased",
    "queue_ready",
    "queue_delayed",
    "queue_failed",
    "queue_dead",
    "queue_oldest_age_seconds",
    "writer_commit_seconds",
    "writer_group_size",
    "writer_syncs",
    "writer_queued",
    "writer_utilization",
    "server_listeners",
    "server_waiting",
}

BUFFER = (
    "batches_flushed_total",
    "entries_flushed_total",
    "bytes_flushed_total",
    "bytes_written_total",
    "flush_duration_seconds",
    "batches_collected_total",
    "entries_collected_total",
    "bytes_collected_total",
    "consumer_lag_seconds",
    "queue_length",
    "acks_total",
    "gc_files_deleted_total",
    "gc_files_failed_total",
    "gc_duration_seconds",
    "fetch_duration_seconds",
    "manifest_writes_total",
    "manifest_conflicts_total",
    "descriptors_handed_out_total",
)
"""Of the metrics whose names begin with `penstock_buffer_`."""


def test_everything_is_there_and_prometheus_reads_it(served: Served, journal: penstock.Journal) -> None:
    journal.topic("orders").append("k")
    journal.topic("orders").commit("billing", 0)
    queue = journal.queue("reminders", max_attempts=1, dead_letter="reminders.dead")
    queue.push_many(["a", "b"])
    first, second = queue.take_many(2)
    first.ack()
    second.nack(error="no")
    watch(journal)  # in-process as well: nothing may come twice
    families = {
        family.name.removeprefix("penstock_"): family
        for family in text_string_to_metric_families(served.get("/metrics").data.decode())
        if family.name.startswith("penstock_")
    }
    assert set(families) >= EXPECTED
    seen = [(s.name, tuple(sorted(s.labels.items()))) for family in families.values() for s in family.samples]
    assert len(seen) == len(set(seen))

    def value(family: str, **labels: str) -> float:
        return next(s.value for s in families[family].samples if labels.items() <= s.labels.items())

    assert value("consumer_lag", topic="orders", consumer="billing") == 1
    assert value("queue_dead", queue="reminders") == 1
    assert value("findings", kind="dead", subject="reminders") == 1
    assert {sample.labels["kind"] for sample in families["findings"].samples} == {"dead"}
    assert value("queue_ready", queue="reminders.dead") == 0
    outcomes = {s.labels["outcome"] for s in families["queue_nacked"].samples if s.labels["queue"] == "reminders"}
    assert outcomes == {"dead"}


def test_the_buffers_names_are_there_once_a_buffer_is_used(served: Served, tmp_path: object) -> None:
    from penstock.buffer import Producer

    with Producer(f"file://{tmp_path}/bucket") as producer:
        producer.produce([b"a"]).result(60)
    text = served.get("/metrics").data.decode()
    for name in BUFFER:
        assert f"# TYPE penstock_buffer_{name} " in text, name
