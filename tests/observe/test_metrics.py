"""Counters, gauges and histograms: exact under threads, readable in process and by Prometheus."""

from __future__ import annotations

import math
import threading

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from penstock.core.observe.metrics import REGISTRY, Registry, prometheus_name
from penstock.errors import ConfigError


@pytest.fixture
def registry() -> Registry:
    return Registry()


def test_a_counter_is_exact_under_threads(registry: Registry):
    counter = registry.counter("work.done", "things done")

    def work():
        for _ in range(20_000):
            counter.inc()
        counter.inc(5)

    for _ in range(2):  # the second round's threads reuse the first's identities
        threads = [threading.Thread(daemon=True, target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert registry.snapshot()["work.done"] == 2 * 4 * 20_005


def test_a_histogram_is_exact_under_threads(registry: Registry):
    histogram = registry.histogram("work.seconds", "how long", (1.0, 2.0))

    def work():
        for _ in range(2000):
            for value in (0.5, 1.0, 1.5, 99.0):
                histogram.observe(value)

    threads = [threading.Thread(daemon=True, target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    reading = histogram.read()
    assert reading.cumulative == [16_000, 24_000, 32_000]
    assert (reading.count, reading.sum) == (32_000, 8000 * 102.0)
    assert registry.snapshot()["work.seconds"] == {
        "count": 32_000,
        "sum": 816_000.0,
        "buckets": {1.0: 16_000, 2.0: 24_000, math.inf: 32_000},
    }


def test_time_measures_also_what_raises(registry: Registry):
    histogram = registry.histogram("x", "x")
    with pytest.raises(RuntimeError), histogram.time():
        raise RuntimeError
    assert histogram.read().count == 1


def test_gauges_keep_what_was_set_or_ask(registry: Registry):
    registry.gauge("size", "x").set(5)
    assert registry.snapshot()["size"] == 5
    things = [1, 2, 3]
    registry.watch("gauge", "things", "x", (), lambda: [((), len(things))])
    things.append(4)
    assert registry.snapshot()["things"] == 4


def test_labels_split_a_metric(registry: Registry):
    writes = registry.counters("writes", "x", ("role", "store"))
    writes.labels(role="a", store="s3").inc(2)
    writes.labels(store="s3", role="a").inc()
    writes.labels(role="b", store="file").inc()
    assert registry.snapshot() == {"writes{role=a,store=s3}": 3, "writes{role=b,store=file}": 1}
    with pytest.raises(ConfigError, match="role"):
        writes.labels(role="a")


def test_the_same_metric_is_given_twice_and_another_of_its_name_refused(registry: Registry):
    assert registry.counter("x", "x") is registry.counter("x", "x")
    with pytest.raises(ConfigError, match="exists as a counter"):
        registry.gauge("x", "x")
    with pytest.raises(ConfigError):
        registry.counters("x", "x", ("role",))
    with pytest.raises(ConfigError, match="increase"):
        registry.histogram("y", "y", (2.0, 1.0))


def filled(registry: Registry) -> Registry:
    registry.counter("a.count", 'said "so"\\\nand more').inc(3)
    registry.counters("a.writes", "x", ("role",)).labels(role='tricky "\\\n').inc()
    registry.gauge("a.level", "x").set(-1.5)
    histogram = registry.histogram("a.seconds", "x", (0.1, 1.0))
    for value in (0.05, 0.5, 5):
        histogram.observe(value)
    return registry


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_prometheus_reads_the_text(registry: Registry):
    found = samples(filled(registry).prometheus_text())
    assert found[("penstock_a_count_total", ())] == 3
    assert found[("penstock_a_writes_total", (("role", 'tricky "\\\n'),))] == 1
    assert found[("penstock_a_level", ())] == -1.5
    assert found[("penstock_a_seconds_bucket", (("le", "1.0"),))] == 2
    assert found[("penstock_a_seconds_bucket", (("le", "+Inf"),))] == found[("penstock_a_seconds_count", ())] == 3
    assert found[("penstock_a_seconds_sum", ())] == pytest.approx(5.55)


def test_prometheus_client_exposes_the_same(registry: Registry):
    theirs = CollectorRegistry()
    filled(registry).register_with(theirs)
    ours, exposed = samples(registry.prometheus_text()), samples(generate_latest(theirs).decode())
    assert ours == {name: value for name, value in exposed.items() if not name[0].endswith("_created")}


def test_an_empty_registry_says_nothing(registry: Registry):
    assert (registry.prometheus_text(), registry.snapshot()) == ("", {})


def test_names_for_prometheus():
    assert prometheus_name("buffer.acks", "counter") == "penstock_buffer_acks_total"
    assert prometheus_name("a.b_total", "counter") == "penstock_a_b_total"
    assert prometheus_name("a-b.c", "gauge") == "penstock_a_b_c"


def test_the_process_has_a_registry_of_its_own():
    assert isinstance(REGISTRY, Registry)
