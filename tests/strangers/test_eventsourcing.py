"""The suite of eventsourcing 9.5.6, which its authors hold their own persistence modules to, on ours.

All cases of `eventsourcing.tests.persistence`, `application` and `projection` run, also the optional one of
subscriptions. Left out: TranscoderTestCase, because a persistence module has no transcoder, and
TaggedDecisionCountersProjectionTestCase, because their dynamic consistency boundary has an interface of its own: see
`test_dcb`.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from eventsourcing.application import Application
from eventsourcing.domain import Aggregate, event
from eventsourcing.persistence import IntegrityError, ProcessRecorder, StoredEvent, Tracking, TrackingRecorder
from eventsourcing.system import NewSingleThreadedRunner, ProcessApplication, System
from eventsourcing.tests import application as their_application
from eventsourcing.tests import persistence as theirs
from eventsourcing.tests import projection as their_projections
from eventsourcing.utils import Environment

import penstock
from penstock.integrations.eventsourcing import (
    PenstockAggregateRecorder,
    PenstockApplicationRecorder,
    PenstockFactory,
    PenstockProcessRecorder,
    PenstockTrackingRecorder,
)
from server.process import ServerProcess

NIGHTLY = pytest.mark.nightly("strangers-eventsourcing")
MODULE = "penstock.integrations.eventsourcing"


class Place:
    """A journal for each of their tests."""

    journal: penstock.Journal

    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        self.url = str(tmp_path / "events.db")
        monkeypatch.setenv("PERSISTENCE_MODULE", MODULE)
        monkeypatch.setenv("PENSTOCK_URL", self.url)
        with penstock.open(self.url) as self.journal:
            yield


# ── their cases ──────────────────────────────────────────────────────────────────────────────────────────────────────
class TestAggregateRecorder(Place, theirs.AggregateRecorderTestCase):
    def create_recorder(self) -> PenstockAggregateRecorder:
        return PenstockAggregateRecorder(self.journal)


class TestApplicationRecorder(Place, theirs.ApplicationRecorderTestCase):
    def create_recorder(self) -> PenstockApplicationRecorder:
        return PenstockApplicationRecorder(self.journal)

    def test_insert_subscribe(self) -> None:
        self.optional_test_insert_subscribe()


@NIGHTLY
class TestTextIds(TestApplicationRecorder):
    def create_recorder(self) -> PenstockApplicationRecorder:
        return PenstockApplicationRecorder(self.journal, text_ids=True)

    def new_originator_id(self) -> str:
        return f"order-{uuid4()}"


class TestTrackingRecorder(Place, theirs.TrackingRecorderTestCase):
    def create_recorder(self) -> PenstockTrackingRecorder:
        return PenstockTrackingRecorder(self.journal)


class TestProcessRecorder(Place, theirs.ProcessRecorderTestCase):
    def create_recorder(self) -> PenstockProcessRecorder:
        return PenstockProcessRecorder(self.journal)


class TestNotificationIds(Place, theirs.NonInterleavingNotificationIDsBaseCase):
    def create_recorder(self) -> PenstockApplicationRecorder:
        return PenstockApplicationRecorder(self.journal)


class OtherTrackingRecorder(PenstockTrackingRecorder):
    pass


class TestFactory(Place, theirs.InfrastructureFactoryTestCase[PenstockFactory]):
    def setUp(self) -> None:
        self.env = Environment(env={"PERSISTENCE_MODULE": MODULE, "PENSTOCK_URL": self.url})
        super().setUp()

    def expected_factory_class(self) -> type[PenstockFactory]:
        return PenstockFactory

    def expected_aggregate_recorder_class(self) -> type[PenstockAggregateRecorder]:
        return PenstockAggregateRecorder

    def expected_application_recorder_class(self) -> type[PenstockApplicationRecorder]:
        return PenstockApplicationRecorder

    def expected_tracking_recorder_class(self) -> type[PenstockTrackingRecorder]:
        return PenstockTrackingRecorder

    def tracking_recorder_subclass(self) -> type[TrackingRecorder]:
        return OtherTrackingRecorder

    def expected_process_recorder_class(self) -> type[ProcessRecorder]:
        return PenstockProcessRecorder


@NIGHTLY
class TestExampleApplication(Place, their_application.ExampleApplicationTestCase):
    expected_factory_topic = f"{MODULE}:PenstockFactory"


@NIGHTLY
@pytest.mark.filterwarnings("default::DeprecationWarning")  # a test asks for the name that they deprecated
class TestApplications(Place, their_application.ApplicationTestCase):
    pass


class Counters(PenstockTrackingRecorder, their_projections.EventCountersView):
    """Their view of counters, as events beside what is tracked."""

    def get_created_event_counter(self) -> int:
        return self._count("created")

    def get_subsequent_event_counter(self) -> int:
        return self._count("subsequent")

    def incr_created_event_counter(self, tracking: Tracking) -> None:
        self._increase("created", tracking)

    def incr_subsequent_event_counter(self, tracking: Tracking) -> None:
        self._increase("subsequent", tracking)

    def _count(self, name: str) -> int:
        return sum(1 for _ in self.topic.read(kind=name))

    def _increase(self, name: str, tracking: Tracking) -> None:
        outbox = self.journal.outbox()
        outbox.stage(self.topic, name)
        self._stage_tracking(outbox, tracking)
        self._insert(outbox)


class TestCountersView(Place, their_projections.EventCountersViewTestCase):
    def construct_event_counters_view(self) -> Counters:
        return Counters(self.journal)


@NIGHTLY
class TestAggregateProjection(Place, their_projections.AggregateEventCountersProjectionTestCase):
    view_class = Counters


@NIGHTLY
class TestEventSourcedProjection(Place, their_projections.EventSourcedProjectionTestCase):
    pass


# ── ours ─────────────────────────────────────────────────────────────────────────────────────────────────────────────
def stored(originator: UUID, version: int) -> StoredEvent:
    return StoredEvent(originator, version, "placed", b"state")


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[penstock.Journal]:
    with penstock.open(tmp_path / "events.db") as opened:
        yield opened


def test_of_writers_of_one_version_one_succeeds(journal: penstock.Journal) -> None:
    recorder, originator, versions = PenstockApplicationRecorder(journal), uuid4(), 20
    barrier = threading.Barrier(4)

    def write() -> int:
        successes = 0
        for version in range(versions):
            barrier.wait()
            with suppress(IntegrityError):
                recorder.insert_events([stored(originator, version)])
                successes += 1
        return successes

    with ThreadPoolExecutor(4) as pool:
        assert sum(one.result() for one in [pool.submit(write) for _ in range(4)]) == versions
    assert [one.originator_version for one in recorder.select_events(originator)] == list(range(versions))


def test_events_are_selected_by_version_as_a_list_would_be(journal: penstock.Journal) -> None:
    recorder, originator = PenstockAggregateRecorder(journal), uuid4()
    events = [stored(originator, version) for version in (1, 2, 5, 6, 9)]
    recorder.insert_events(events)
    recorder.insert_events([stored(uuid4(), 5)])
    bounds = (None, 0, 1, 3, 6, 9, 12)
    for gt, lte, desc, limit in itertools.product(bounds, bounds, (False, True), (None, 1, 2, 9)):
        wanted = [
            one
            for one in events
            if (gt is None or one.originator_version > gt) and (lte is None or one.originator_version <= lte)
        ]
        found = recorder.select_events(originator, gt=gt, lte=lte, desc=desc, limit=limit)
        assert found == (wanted[::-1] if desc else wanted)[:limit], (gt, lte, desc, limit)


def test_a_version_below_the_newest_is_refused(journal: penstock.Journal) -> None:
    recorder, originator = PenstockAggregateRecorder(journal), uuid4()
    recorder.insert_events([stored(originator, 5)])
    with pytest.raises(IntegrityError, match="is at version 5: version 3 cannot be recorded"):
        recorder.insert_events([stored(originator, 3)])


def test_events_and_tracking_are_recorded_together_or_not_at_all(journal: penstock.Journal) -> None:
    recorder, originator = PenstockProcessRecorder(journal), uuid4()
    recorder.insert_events([stored(originator, 1)], tracking=Tracking("shop", 7))
    with pytest.raises(IntegrityError, match="'shop' is tracked through 7: 7 cannot be recorded"):
        recorder.insert_events([stored(originator, 2)], tracking=Tracking("shop", 7))
    with pytest.raises(IntegrityError):
        recorder.insert_events([stored(originator, 1)], tracking=Tracking("shop", 8))
    assert recorder.max_notification_id() == 1
    assert recorder.max_tracking_id("shop") == 7


class Account(Aggregate):
    @event("Opened")
    def __init__(self) -> None:
        self.balance = 0

    @event("Paid")
    def pay(self, amount: int) -> None:
        self.balance += amount


class Accounts(Application[UUID]):
    snapshotting_intervals = {Account: 3}


class Audits(ProcessApplication[UUID]):
    seen = 0

    def policy(self, domain_event: object, processing_event: object) -> None:
        self.seen += 1


def test_an_application_finds_its_aggregates_after_reopening(tmp_path: Path) -> None:
    env = {"PERSISTENCE_MODULE": MODULE, "PENSTOCK_URL": str(tmp_path / "shop.db")}
    with Accounts(env=env) as accounts:
        account = Account()
        for amount in (1, 2, 3, 4):
            account.pay(amount)
            accounts.save(account)
    with Accounts(env=env) as accounts:
        assert accounts.repository.get(account.id).balance == 10
        assert accounts.repository.get(account.id, version=3).balance == 3
    with penstock.open(tmp_path / "shop.db") as journal:
        assert [name for name in journal.topics() if name.startswith("accounts.")] == [
            "accounts.events",
            "accounts.snapshots",
        ]


def test_a_variable_may_be_for_one_application_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERSISTENCE_MODULE", MODULE)
    monkeypatch.setenv("PENSTOCK_URL", str(tmp_path / "all.db"))
    monkeypatch.setenv("ACCOUNTS_PENSTOCK_URL", str(tmp_path / "accounts.db"))
    with Accounts() as accounts, Audits() as audits:
        accounts.save(Account())
        audits.save(Account())
    assert [describe_topics(tmp_path / name) for name in ("all.db", "accounts.db")] == [
        ["audits.events"],
        ["accounts.events"],
    ]


def describe_topics(path: Path) -> list[str]:
    """The topics of a journal, but its own."""
    with penstock.open(path) as journal:
        return [name for name in journal.topics() if not name.startswith("penstock.")]


def test_the_applications_of_a_system_share_a_journal(tmp_path: Path) -> None:
    env = {"PERSISTENCE_MODULE": MODULE, "PENSTOCK_URL": str(tmp_path / "shop.db")}
    with NewSingleThreadedRunner(System(pipes=[[Accounts, Audits]]), env) as runner:
        runner.get(Accounts).save(Account())
        assert runner.get(Audits).seen == 1
        assert runner.get(Audits).recorder.max_tracking_id("Accounts") == 1


def test_a_served_journal_keeps_an_applications_events_too(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "shop.db") as server, penstock.open(server.url) as journal:
        recorder, originator = PenstockProcessRecorder(journal), uuid4()
        recorder.insert_events([stored(originator, 1)], tracking=Tracking("shop", 7))
        with pytest.raises(IntegrityError):
            recorder.insert_events([stored(originator, 1)])
        with recorder.subscribe() as subscription:
            assert next(subscription).originator_id == originator


def test_a_wrong_type_of_ids_is_refused() -> None:
    with pytest.raises(penstock.errors.ConfigError, match="ORIGINATOR_ID_TYPE is uuid or text, not 'integer'"):
        PenstockFactory({"PENSTOCK_URL": "memory:", "ORIGINATOR_ID_TYPE": "integer"})
