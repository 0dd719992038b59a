"""Counters, gauges and histograms that cost a fraction of a microsecond and can be read in process or by Prometheus.

    flushed = REGISTRY.counter("buffer.batches_flushed", "batches whose manifest entry is durable")
    flushed.inc()
    writes = REGISTRY.counters("buffer.manifest_writes", "puts that won", ("role",))
    producer_writes = writes.labels(role="producer")        # keep the child: looking it up costs more than counting
    REGISTRY.snapshot()["buffer.batches_flushed"]           # 1.0
    REGISTRY.prometheus_text()                              # penstock_buffer_batches_flushed_total 1.0

Counting takes no lock: every thread adds to its own cell, and only the reader sums the cells, so an increment is exact
under any number of threads. Names have dots here; Prometheus sees underscores and the prefix `penstock_`.
"""

from __future__ import annotations

import math
import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from threading import get_ident
from time import perf_counter
from typing import Any, Generic, Literal, TypeVar

from penstock.errors import ConfigError

#: Seconds, from a tenth of a millisecond (a local write) to a minute (an outage ridden out by retries).
DURATION_BUCKETS = (0.0001, 0.00025, 0.001, 0.0025, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0, 60.0)


class Counter:
    """A number that only grows."""

    __slots__ = ("cells",)

    def __init__(self) -> None:
        self.cells: defaultdict[int, float] = defaultdict(int)
        """The part of each thread, by its id; a thread adds only to its own part."""

    def inc(self, by: float = 1) -> None:
        """Adds `by`."""
        self.cells[get_ident()] += by

    @property
    def value(self) -> float:
        """The sum over all threads, including threads that have ended."""
        return float(sum(list(self.cells.values())))


class Gauge:
    """A number that holds the last set value."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def set(self, value: float) -> None:
        """Replaces the value."""
        self.value = float(value)


class _Cell:
    """A thread's part of a histogram."""

    __slots__ = ("counts", "sum")

    def __init__(self, buckets: int) -> None:
        self.counts = [0] * buckets
        self.sum = 0.0


class Reading:
    """The totals of a histogram: `count`, `sum`, and the number of values at or below each bound."""

    __slots__ = ("bounds", "count", "cumulative", "sum")

    def __init__(self, bounds: tuple[float, ...], counts: Sequence[int], total: float) -> None:
        self.bounds = bounds
        self.cumulative = list(accumulate(counts))
        self.count = self.cumulative[-1]
        self.sum = total

    def buckets(self) -> Iterator[tuple[float, int]]:
        """Yields each bound, the last bound infinite, with the number of observations at or below it."""
        return zip([*self.bounds, math.inf], self.cumulative, strict=True)


class Histogram:
    """The distribution of a measure, mostly of seconds."""

    __slots__ = ("_bounds", "_cells")

    def __init__(self, bounds: tuple[float, ...] = DURATION_BUCKETS) -> None:
        self._bounds = bounds
        self._cells: dict[int, _Cell] = {}

    def observe(self, value: float) -> None:
        """Counts one observation."""
        me = get_ident()
        cell = self._cells.get(me)
        if cell is None:
            cell = self._cells[me] = _Cell(len(self._bounds) + 1)
        cell.counts[bisect_left(self._bounds, value)] += 1
        cell.sum += value

    @contextmanager
    def time(self) -> Iterator[None]:
        """Observes how long the block took, also when it raised."""
        started = perf_counter()
        try:
            yield
        finally:
            self.observe(perf_counter() - started)

    def read(self) -> Reading:
        """Returns the observations of all threads together."""
        counts = [0] * (len(self._bounds) + 1)
        total = 0.0
        for cell in list(self._cells.values()):
            total += cell.sum
            for index, count in enumerate(cell.counts):
                counts[index] += count
        return Reading(self._bounds, counts, total)


M = TypeVar("M", Counter, Gauge, Histogram)
Kind = Literal["counter", "gauge", "histogram"]
Source = Callable[[], "Iterable[tuple[tuple[str, ...], float | Reading]]"]
"""A function that returns the values of a metric that is counted elsewhere."""


class Watched:
    """A metric that is counted elsewhere; its values are computed when they are read."""

    def __init__(self, name: str, help: str, kind: str, labels: tuple[str, ...], source: Source) -> None:
        self.name = name
        self.kind = kind
        self.help = help
        self.label_names = labels
        self._source = source

    def readings(self) -> list[tuple[tuple[str, ...], float | Reading]]:
        """Returns every value now, with its label values in the order of `label_names`."""
        return sorted(self._source(), key=lambda item: item[0])


class Family(Watched, Generic[M]):
    """A metric with labels: `labels(role="producer")` is the child that counts."""

    def __init__(self, name: str, help: str, kind: str, labels: tuple[str, ...], make: Callable[[], M]) -> None:
        super().__init__(name, help, kind, labels, self._values)
        self._make: Callable[[], M] = make
        self._children: dict[tuple[str, ...], M] = {}
        self._lock = threading.Lock()

    def labels(self, **values: str) -> M:
        """Returns the child for these label values, which is made on first use."""
        if tuple(sorted(values)) != tuple(sorted(self.label_names)):
            raise ConfigError(f"metric {self.name} has the labels {self.label_names}, not {tuple(values)}")
        key = tuple(str(values[name]) for name in self.label_names)
        child = self._children.get(key)
        if child is None:
            with self._lock:
                child = self._children.setdefault(key, self._make())
        return child

    def _values(self) -> Iterable[tuple[tuple[str, ...], float | Reading]]:
        children = list(self._children.items())
        return [(key, child.read() if isinstance(child, Histogram) else child.value) for key, child in children]


class Registry:
    """A set of metrics.

    `REGISTRY` belongs to the process; use a new registry to count a single producer or test apart.
    """

    def __init__(self) -> None:
        self._families: dict[str, Watched] = {}
        self._lock = threading.Lock()

    def counters(self, name: str, help: str, labels: tuple[str, ...]) -> Family[Counter]:
        """Returns a counter split by labels."""
        return self._family(name, help, "counter", labels, Counter)

    def counter(self, name: str, help: str) -> Counter:
        """Returns a counter without labels."""
        return self.counters(name, help, ()).labels()

    def gauges(self, name: str, help: str, labels: tuple[str, ...]) -> Family[Gauge]:
        """Returns a gauge split by labels."""
        return self._family(name, help, "gauge", labels, Gauge)

    def gauge(self, name: str, help: str) -> Gauge:
        """Returns a gauge without labels."""
        return self.gauges(name, help, ()).labels()

    def histograms(
        self, name: str, help: str, labels: tuple[str, ...], bounds: tuple[float, ...] = DURATION_BUCKETS
    ) -> Family[Histogram]:
        """Returns a histogram split by labels."""
        if not bounds or list(bounds) != sorted(set(bounds)):
            raise ConfigError(f"the bounds of metric {name} must increase: {bounds}")
        return self._family(name, help, "histogram", labels, lambda: Histogram(bounds))

    def histogram(self, name: str, help: str, bounds: tuple[float, ...] = DURATION_BUCKETS) -> Histogram:
        """Returns a histogram without labels."""
        return self.histograms(name, help, (), bounds).labels()

    def _family(self, name: str, help: str, kind: str, labels: tuple[str, ...], make: Callable[[], M]) -> Family[M]:
        with self._lock:
            family = self._families.setdefault(name, Family(name, help, kind, labels, make))
        if not isinstance(family, Family) or family.kind != kind or family.label_names != labels:
            raise ConfigError(
                f"metric {name} exists as a {family.kind} with the labels {family.label_names}; "
                f"it cannot also be a {kind} with {labels}"
            )
        return family

    def watch(self, kind: Kind, name: str, help: str, labels: tuple[str, ...], source: Source) -> None:
        """Adds a metric whose values `source` returns: pairs of label values and a number, or a Reading."""
        with self._lock:
            if name in self._families:
                raise ConfigError(f"metric {name} exists already")
            self._families[name] = Watched(name, help, kind, labels, source)

    def forget(self, name: str) -> None:
        """Drops a metric; ignores an unknown metric."""
        with self._lock:
            self._families.pop(name, None)

    def families(self) -> list[Watched]:
        """Returns every metric, by name."""
        return [self._families[name] for name in sorted(self._families)]

    def snapshot(self) -> dict[str, Any]:
        """Returns every value now, by name: numbers for counters and gauges, count/sum/buckets for histograms.

        A metric with labels is named `name{label=value}`, with one key for each child.
        """
        values: dict[str, Any] = {}
        for family in self.families():
            for key, reading in family.readings():
                labels = ",".join(f"{name}={value}" for name, value in zip(family.label_names, key, strict=True))
                spelled = f"{family.name}{{{labels}}}" if labels else family.name
                values[spelled] = (
                    {"count": reading.count, "sum": reading.sum, "buckets": dict(reading.buckets())}
                    if isinstance(reading, Reading)
                    else reading
                )
        return values

    def prometheus_text(self, without: Container[str] = ()) -> str:
        """Returns every value in Prometheus's text format, except for named metrics; needs no further package."""
        lines: list[str] = []
        for family in self.families():
            if family.name in without:
                continue
            name = prometheus_name(family.name, family.kind)
            lines.append(f"# HELP {name} {_escape_help(family.help)}")
            lines.append(f"# TYPE {name} {family.kind}")
            for key, reading in family.readings():
                pairs = list(zip(family.label_names, key, strict=True))
                if isinstance(reading, Reading):
                    for bound, seen in reading.buckets():
                        lines.append(f"{name}_bucket{_labels([*pairs, ('le', _number(bound))])} {seen}")
                    lines.append(f"{name}_sum{_labels(pairs)} {_number(reading.sum)}")
                    lines.append(f"{name}_count{_labels(pairs)} {reading.count}")
                else:
                    lines.append(f"{name}{_labels(pairs)} {_number(reading)}")
        return "\n".join(lines) + "\n" if lines else ""

    def register_with(self, prometheus_registry: Any = None) -> None:
        """Makes prometheus_client (when it is installed) expose these metrics beside the application's own."""
        try:
            from prometheus_client.core import REGISTRY as default
        except ImportError as error:
            raise ConfigError("prometheus-client is not installed: pip install prometheus-client") from error
        (prometheus_registry or default).register(_Bridge(self))


class _Bridge:
    """A prometheus_client collector over a registry."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def collect(self) -> Iterable[Any]:
        from prometheus_client.parser import text_string_to_metric_families

        return text_string_to_metric_families(self._registry.prometheus_text())


def prometheus_name(name: str, kind: str) -> str:
    """Returns Prometheus's name of a metric: after the prefix, dots become underscores; counters end in _total."""
    flat = "penstock_" + name.replace(".", "_").replace("-", "_")
    return flat + "_total" if kind == "counter" and not flat.endswith("_total") else flat


def _number(value: float) -> str:
    if value == math.inf:
        return "+Inf"
    if value == -math.inf:
        return "-Inf"
    return repr(float(value)).replace("nan", "NaN")


def _labels(pairs: list[tuple[str, str]]) -> str:
    if not pairs:
        return ""
    return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in pairs) + "}"


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _escape_help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


#: The process's metrics, which penstock uses unless it gets another registry.
REGISTRY = Registry()


def watch(journal: Any) -> None:
    """Adds a journal's present state (backlogs, oldest ages, lags) to the process's metrics, as gauges.

    The journal is sampled when the metrics are read, at most once a second; a closed journal is ignored.
    """
    from penstock.core.sampling.collect import watch

    watch(journal)
