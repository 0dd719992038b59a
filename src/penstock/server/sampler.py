"""Rates, backlogs and lags over the last minutes: sampled once for everybody who looks.

A sample is one look at every topic and queue. The thread looks every second while the store changes and takes a longer
nap when looking is dear (a thousand topics), so that it never costs more than a few percent of a core.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from penstock.errors import Closed, PenstockError
from penstock.observe.collect import take_sample
from penstock.observe.health import GROWING_STEPS, Lags, growing, lags_of
from penstock.observe.sample import Sample

if TYPE_CHECKING:
    from penstock.api import LocalJournal

KEPT = 300
"""Samples of the past that are kept: five minutes, mostly."""
INTERVAL = 1.0
SHARE = 0.04
"""Of a core, that sampling may cost."""
LAG_SECONDS = 60.0
"""How far the looks are apart that show whether a lag grows."""
RATE_SECONDS = 5.0
"""Over how long a rate is measured."""


class Series:
    """A value over time, kept only where it changed: what stands still costs nothing."""

    __slots__ = ("_points",)

    def __init__(self) -> None:
        self._points: deque[tuple[int, tuple[int, ...]]] = deque()

    def add(self, number: int, value: tuple[int, ...]) -> None:
        points = self._points
        if not points or points[-1][1] != value:
            points.append((number, value))
        while len(points) > 1 and points[1][0] <= number - KEPT:
            points.popleft()

    def over(self, numbers: Sequence[int]) -> list[tuple[int, ...] | None]:
        """The value at each sample; None before the first."""
        values: list[tuple[int, ...] | None] = []
        points = list(self._points)
        at = -1
        for number in numbers:
            while at + 1 < len(points) and points[at + 1][0] <= number:
                at += 1
            values.append(points[at][1] if at >= 0 else None)
        return values


class Sampler:
    """Samples a journal for as long as it is open. `start` is idempotent; whoever listens is told of every sample."""

    def __init__(self, journal: LocalJournal, *, take: Callable[[Any], Sample] = take_sample) -> None:
        self._journal = journal
        self._take = take
        self._lock = threading.Lock()
        self._sampling = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._listeners: list[Callable[[], None]] = []
        self._times: deque[tuple[int, float]] = deque(maxlen=KEPT)
        self._recent: deque[tuple[float, dict[str, int]]] = deque()
        self._lags: deque[tuple[float, Lags]] = deque(maxlen=GROWING_STEPS + 1)
        self._topics: dict[str, Series] = {}
        self._queues: dict[tuple[str, str], Series] = {}
        self._total = Series()
        self._newest: Sample | None = None
        self.number = 0
        """Grows with every sample."""

    def start(self) -> None:
        """Begins to sample in the background, unless it does already."""
        if self._thread is not None:
            return
        with self._lock:
            if self._thread is None and not self._stopping.is_set():
                self.sample()
                self._thread = threading.Thread(target=self._run, name="penstock-sampler", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """Ends sampling for good."""
        with self._lock:
            self._stopping.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    @property
    def newest(self) -> Sample:
        """The newest sample; the first one is taken when asked for."""
        return self._newest or self.sample()

    def listen(self, tell: Callable[[], None]) -> Callable[[], None]:
        """Calls `tell` (from the sampler's thread) after every sample; returns what ends it."""
        self._listeners.append(tell)

        def end() -> None:
            with suppress(ValueError):
                self._listeners.remove(tell)

        return end

    def sample(self) -> Sample:
        """Takes a sample now."""
        with self._sampling:
            sample = self._take(self._journal)
            self.number += 1
            self._add_rates(sample)
            self._watch_lags(sample)
            self._remember(sample)
            self._newest = sample
        for tell in list(self._listeners):
            tell()
        return sample

    def _add_rates(self, sample: Sample) -> None:
        recent = self._recent
        while len(recent) > 1 and sample.at - recent[1][0] >= RATE_SECONDS:
            recent.popleft()
        if recent and sample.at > recent[0][0]:
            past_at, past = recent[0]
            took = sample.at - past_at
            for name, topic in sample.topics.items():
                # A topic that was not there a moment ago has gone from nothing to what it is.
                topic.rate = max(0, topic.latest - past.get(name, 0)) / took
            for name, groups in sample.queues.items():
                pushed = sample.topics.get(name)
                for group in groups:
                    group.rate = pushed.rate if pushed else 0.0
            sample.rate = sum(topic.rate for topic in sample.topics.values())
        recent.append((sample.at, {name: topic.latest for name, topic in sample.topics.items()}))

    def _watch_lags(self, sample: Sample) -> None:
        """Adds consumers that fall behind to what the sample finds wrong."""
        looks = self._lags
        if not looks or sample.at - looks[-1][0] >= LAG_SECONDS:
            looks.append((sample.at, lags_of(sample)))
        sample.findings += growing([lags for _, lags in looks])

    def _remember(self, sample: Sample) -> None:
        self._times.append((self.number, sample.at))
        for name, topic in sample.topics.items():
            self._topics.setdefault(name, Series()).add(self.number, (topic.latest,))
        for name, groups in sample.queues.items():
            for group in groups:
                values = (group.ready, group.in_flight, group.delayed, group.failed)
                self._queues.setdefault((name, group.group), Series()).add(self.number, values)
        self._total.add(self.number, (sum(topic.latest for topic in sample.topics.values()),))

    def _run(self) -> None:
        nap = INTERVAL
        while not self._stopping.wait(nap):
            if self._journal.closed:
                return
            begun = time.thread_time()
            try:
                self.sample()
            except Closed:
                return
            except PenstockError:
                nap = 5 * INTERVAL  # the store is in trouble, which others report better
                continue
            nap = max(INTERVAL, (time.thread_time() - begun) / SHARE)

    # ── for charts ───────────────────────────────────────────────────────────────────────────────────────────────────
    def topic_history(self, name: str) -> list[tuple[float, float]]:
        """(time, events a second) for each step between two samples."""
        return self._rates(self._topics.get(name))

    def total_history(self) -> list[tuple[float, float]]:
        """The same over all topics."""
        return self._rates(self._total)

    def _rates(self, series: Series | None) -> list[tuple[float, float]]:
        if series is None:
            return []
        times = list(self._times)
        counts = series.over([number for number, _ in times])
        points: list[tuple[float, float]] = []
        for (before, after), (low, high) in zip(pairwise(times), pairwise(counts), strict=True):
            took = after[1] - before[1]
            if took > 0 and low is not None and high is not None:
                points.append((after[1], max(0, high[0] - low[0]) / took))
        return points

    def queue_history(self, name: str, group: str) -> list[tuple[float, int, int, int, int]]:
        """(time, ready, in flight, delayed, failed) for each sample."""
        series = self._queues.get((name, group))
        if series is None:
            return []
        times = list(self._times)
        values = series.over([number for number, _ in times])
        return [
            (at, value[0], value[1], value[2], value[3])
            for (_, at), value in zip(times, values, strict=True)
            if value is not None
        ]
