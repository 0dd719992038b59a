"""Settings that change in the same commit as events are appended: each event is stored as its topic was by then."""

from __future__ import annotations

from functools import partial
from threading import Event, Thread

from journals import Place, eventually, only, payloads

from penstock import Journal, ManualClock, Topic
from penstock.journal import keys
from penstock.journal.catalog import Settings
from penstock.journal.commit import Commit, adopt_topic, change_settings
from penstock.journal.writer import WriteRequest
from penstock.local.backend import LocalJournal


class Held:
    """Another thread's transaction: what is submitted meanwhile is committed together, in order."""

    def __init__(self, journal: Journal) -> None:
        self._begun, self._over = Event(), Event()
        self._thread = Thread(target=self._hold, args=(journal,))

    def _hold(self, journal: Journal) -> None:
        with journal.transaction():
            self._begun.set()
            self._over.wait()

    def __enter__(self) -> None:
        self._thread.start()
        self._begun.wait()

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()


def configure_verified(commit: Commit) -> object:
    return change_settings(commit, "orders", {"verified": True})


def test_hashes_that_begin_between_two_appends_of_one_commit(journal: Journal, topic: Topic) -> None:
    assert isinstance(journal, LocalJournal)
    with Held(journal):
        first = topic.submit("placed", 1, key="a")
        changed = journal._core.writer.submit(WriteRequest(configure_verified))
        second = topic.submit("placed", 2, key="a")
        beside = journal.topic("others").submit("placed", 3)
    assert (first.result().seq, second.result().seq, beside.result().seq) == (1, 2, 1)
    assert changed.result() is not None and topic.settings.verified
    topic.append("placed", 4, key="a")
    assert payloads(topic.read()) == [1, 2, 4]
    report = topic.verify()
    assert report.ok and (report.unhashed, report.events) == (1, 2)


def test_an_import_takes_no_settings_over_where_another_caller_was_first(journal: Journal, topic: Topic) -> None:
    assert isinstance(journal, LocalJournal)
    topic.configure(max_events=1000)  # it is there, and empty
    adopt = partial(_adopt, Settings(verified=True))
    with Held(journal):
        first = topic.submit("placed", 1)
        adopted = journal._core.writer.submit(WriteRequest(adopt))
        second = topic.submit("placed", 2)
    assert (first.result().seq, second.result().seq) == (1, 2) and adopted.result() is None
    assert not topic.settings.verified and payloads(topic.read()) == [1, 2]


def _adopt(settings: Settings, commit: Commit) -> None:
    adopt_topic(commit, "orders", settings)


@only(shared=True)
def test_a_max_age_that_another_process_has_set_is_applied(
    place: Place, journal: Journal, topic: Topic, clock: ManualClock
) -> None:
    assert isinstance(journal, LocalJournal)
    core = journal._core
    topic.append("placed", 1)
    looked = Event()
    core.housekeeper.chores.append(lambda name: looked.set())
    core.housekeeper.request("orders")  # as after every few dozen commits: its thread is there, and waits for more
    looked.wait()
    other = place.open(clock=clock, durability="process")
    other.topic("orders").configure(max_age=60)
    other.close()  # its own housekeeper ends with it

    def stored() -> bool:
        with core.engine.read() as snap:
            return any(True for _ in snap.scan(*keys.block_range(1)))

    assert stored() and payloads(topic.read()) == [1]
    clock.advance(61)
    eventually(lambda: not stored(), "events past their max_age are removed from disk")
    assert list(topic.read()) == [] and topic.latest == 1
