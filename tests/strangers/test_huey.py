"""The suite of huey 3.5.4 on a storage over a journal (`huey_storage.py`): a queue, and tables of `tx.sql`.

Run: all cases of its storages, and what its interface, signals, priorities and consumers do with a storage. Left out:
cases about one storage's own files, servers and time to live (`put_if_empty(ttl=…)`, which its SQLite storage refuses,
too); one case that looks into the counters of its memory storage; and the modules that use no storage: cron lines,
serializers, wrappers of functions, its own statistics.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import penstock

os.environ.setdefault("HUEY_SLOW_TESTS", "1")  # theirs that wait for a consumer
# Their package imports all of their tests, and one module among them configures Django for this process.
sys.modules.setdefault("huey.tests.test_django_tasks", ModuleType("test_django_tasks"))

from huey.api import Huey  # noqa: E402
from huey.tests import test_api, test_consumer, test_priority, test_signals, test_storage  # noqa: E402
from huey.tests.base import BaseTestCase  # noqa: E402

from strangers.huey_storage import PenstockStorage  # noqa: E402

NIGHTLY = pytest.mark.nightly("strangers-huey")


class OnAJournal:
    """A journal for each of their tests."""

    journal: penstock.Journal

    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path) -> Iterator[None]:
        with penstock.open(tmp_path / "huey.db", durability="process") as self.journal:
            yield

    def get_huey(self, **options: object) -> Huey:
        return Huey(storage_class=PenstockStorage, journal=self.journal, utc=False, **options)


class TestStorage(OnAJournal, test_storage.StorageTests, BaseTestCase):
    supports_ttl = False

    # Of the cases of their SQLite storage, those about any shared file.
    test_read_schedule_large = NIGHTLY(test_storage.TestSqliteStorage.test_read_schedule_large)
    test_dequeue_multithreaded = test_storage.TestSqliteStorage.test_dequeue_multithreaded

    def test_shared_file_queues(self) -> None:
        other = PenstockStorage("other", journal=self.journal)
        self.s.enqueue(b"a1")
        other.enqueue(b"b1", priority=5)
        self.s.enqueue(b"a2", priority=3)
        assert (self.s.queue_size(), other.queue_size()) == (2, 1)
        assert self.s.enqueued_items() == [b"a2", b"a1"]
        other.flush_queue()
        assert other.dequeue() is None and self.s.dequeue() == b"a2"


def on_a_journal(theirs: type[BaseTestCase]) -> type[BaseTestCase]:
    """A class of their tests that meets our storage wherever it asks for the usual one."""
    made: type[BaseTestCase] = NIGHTLY(type(theirs.__name__, (OnAJournal, theirs), {"__module__": __name__}))
    return made


TestQueue = on_a_journal(test_api.TestQueue)
TestDecorators = on_a_journal(test_api.TestDecorators)
TestTaskHooks = on_a_journal(test_api.TestTaskHooks)
TestGroupPrimitive = on_a_journal(test_api.TestGroupPrimitive)
TestChordPrimitive = on_a_journal(test_api.TestChordPrimitive)
TestChordPrimitive.test_chord_bookkeeping_cleared = None  # it looks into the private counters of their memory storage
TestTaskChaining = on_a_journal(test_api.TestTaskChaining)
TestTaskLocking = on_a_journal(test_api.TestTaskLocking)
TestRateLimit = on_a_journal(test_api.TestRateLimit)
TestHueyAPIs = on_a_journal(test_api.TestHueyAPIs)
TestMultipleHuey = on_a_journal(test_api.TestMultipleHuey)
TestSignals = on_a_journal(test_signals.TestSignals)
TestPriority = on_a_journal(test_priority.TestPriority)
TestConsumerIntegration = on_a_journal(test_consumer.TestConsumerIntegration)
