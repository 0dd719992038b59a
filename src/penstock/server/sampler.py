"""Samples of a journal: taken once for all readers, with rates, and kept as history.

A sample is one look at every topic and queue. While a page or a program reads them, the thread takes one every second,
or more rarely when looking is dear (ten thousand topics), so that it never costs more than a few percent of a core.
While none does it takes one a minute, for the charts.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from penstock.errors import Closed, PenstockError
from penstock.observe.collect import GROWING_STEPS, Lags, growing, lags_of, take_sample
from penstock.observe.sample import Sample

if TYPE_CHECKING:
    from penstock.local.journal import LocalJournal
    from penstock.observe.history import History

INTERVAL = 1.0
SHARE = 0.04
"""Of a core, that sampling may cost."""
LAG_SECONDS = 60.0
"""How far the samples are apart that show whether a lag grows."""
RATE_SECONDS = 5.0
"""Over how long a rate is measured."""
WATCHED_SECONDS = 30.0
"""For how long after the last request samples go on coming every second."""


class Sampler:
    """Samples a journal for as long as it is open. `start` is idempotent; listeners are told of every sample."""

    def __init__(
        self, journal: LocalJournal, *, take: Callable[[Any], Sample] = take_sample, history: History | None = None
    ) -> None:
        self._journal = journal
        self._collect = take
        self.history = history
        self._lock = threading.Lock()
        self._sampling = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._wake = threading.Event()
        self._idle = True
        self._asked = 0.0
        self._listeners: list[Callable[[], None]] = []
        self._recent: deque[tuple[float, dict[str, int]]] = deque()
        self._lags: deque[tuple[float, Lags]] = deque(maxlen=GROWING_STEPS + 1)
        self._newest: Sample | None = None

    def start(self) -> None:
        """Begins to sample in the background, unless it does already."""
        if self._thread is not None:
            return
        with self._lock:
            if self._thread is None and not self._stopping:
                self.sample()
                self._thread = threading.Thread(target=self._run, name="penstock-sampler", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """Ends sampling for good."""
        with self._lock:
            self._stopping = True
            self._wake.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    @property
    def newest(self) -> Sample:
        """The newest sample; a fresh one is taken when the last is from a time without readers."""
        self.start()
        self._asked = time.monotonic()
        if self._newest is None or self._idle:
            self._idle = False
            self._wake.set()
            return self.sample()
        return self._newest

    def listen(self, tell: Callable[[], None]) -> Callable[[], None]:
        """Calls `tell` (from the sampler's thread) after every sample; returns what ends it."""
        self._listeners.append(tell)
        self._wake.set()

        def end() -> None:
            with suppress(ValueError):
                self._listeners.remove(tell)

        return end

    def sample(self) -> Sample:
        """Takes a sample now."""
        with self._sampling:
            sample = self._collect(self._journal)
            self._add_rates(sample)
            self._watch_lags(sample)
            if self.history is not None:
                self.history.add(sample)
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
        taken = self._lags
        if not taken or sample.at - taken[-1][0] >= LAG_SECONDS:
            taken.append((sample.at, lags_of(sample)))
        sample.findings += growing([lags for _, lags in taken])

    def _run(self) -> None:
        nap = INTERVAL
        while not self._stopping:
            self._wake.clear()
            if self._listeners or time.monotonic() - self._asked < WATCHED_SECONDS:
                self._idle = False
                self._pause(nap)
            else:
                self._idle = True
                # A moment after the minute, so that its row is written.
                self._wake.wait(60.05 - time.time() % 60)
            if self._stopping or self._journal.closed:
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

    def _pause(self, seconds: float) -> None:
        """Waits, also when another listener begins meanwhile; only stopping cuts it short."""
        until = time.monotonic() + seconds
        while not self._stopping and (left := until - time.monotonic()) > 0:
            self._wake.wait(left)
            self._wake.clear()
