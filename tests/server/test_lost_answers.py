"""Connections that are cut before, amid and after a request, and amid its answer: what the caller is told is true."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import penstock
from penstock import Draft, aio
from penstock.errors import Closed, OutcomeUnknown, StorageError
from penstock.remote.backend import RemoteJournal
from penstock.server.limits import Limits
from server.cutting import CuttingProxy
from server.serving import Served, serving
from waiting import DEADLINE, eventually

LARGE = "x" * 200_000
"""A payload that no single read of a proxy takes."""
BEFORE, AMID_REQUEST, BEFORE_ANSWER, AMID_ANSWER = "before", "amid the request", "before the answer", "amid the answer"
CUTS = (BEFORE, AMID_REQUEST, BEFORE_ANSWER, AMID_ANSWER)


class Shop:
    """A served journal as another program reaches it, through a proxy, with something to act on."""

    def __init__(self, served: Served, proxy: CuttingProxy) -> None:
        self.local, self.proxy = served.journal, proxy
        self.remote = penstock.open(proxy.url)
        self.topic = self.remote.topic("orders")
        self.queue = self.remote.queue("jobs")
        self.queue.push_many([1, 2, 3])
        (self.delivery,) = self.queue.take_many(1)
        self.topic.append("placed", key="a")

    @contextmanager
    def cut(self, where: str) -> Iterator[None]:
        """Cuts the request of the block, every try of it."""
        if where == BEFORE:
            with self.proxy.away():
                yield
            return
        of, after = {AMID_REQUEST: ("request", 60), BEFORE_ANSWER: ("answer", 0), AMID_ANSWER: ("answer", 30)}[where]
        self.proxy.cut_next(99, after, of)
        yield
        self.proxy.cut_next(0)
        assert self.proxy.cut


@pytest.fixture
def shop(served: Served) -> Iterator[Shop]:
    with CuttingProxy(served.port) as proxy:
        made = Shop(served, proxy)
        yield made
        made.remote.close()


def _outbox(shop: Shop) -> object:
    with shop.remote.outbox() as outbox:
        outbox.stage("orders", "placed")
        outbox.stage("bills", "sent", cause=0)
    return None


CHANGES: dict[str, tuple[Callable[[Shop], object], Callable[[Shop], object]]] = {
    "append": (lambda shop: shop.topic.append("placed"), lambda shop: shop.local.topic("orders").latest),
    "append_many": (
        lambda shop: shop.topic.append_many([Draft("placed"), Draft("placed")]),
        lambda shop: shop.local.topic("orders").latest,
    ),
    "submit": (
        lambda shop: shop.topic.submit("placed").result(DEADLINE),
        lambda shop: shop.local.topic("orders").latest,
    ),
    "outbox": (_outbox, lambda shop: (shop.local.topic("orders").latest, shop.local.topic("bills").latest)),
    "push": (lambda shop: shop.queue.push("more"), lambda shop: len(shop.local.queue("jobs"))),
    "push_many": (lambda shop: shop.queue.push_many(["a", "b"]), lambda shop: len(shop.local.queue("jobs"))),
    "take": (lambda shop: shop.queue.take(), lambda shop: shop.local.queue("jobs").stats().in_flight),
    "claim": (
        lambda shop: shop.queue.claim(min_idle=0, consumer="other"),
        lambda shop: [one.consumer for one in shop.local.queue("jobs").pending()],
    ),
    "ack": (lambda shop: shop.delivery.ack(), lambda shop: len(shop.local.queue("jobs"))),
    "ack_many": (lambda shop: shop.queue.ack_many([shop.delivery]), lambda shop: len(shop.local.queue("jobs"))),
    "nack": (lambda shop: shop.delivery.nack(), lambda shop: shop.local.queue("jobs").stats().in_flight),
    "configure": (lambda shop: shop.topic.configure(max_age=60), lambda shop: shop.local.topic("orders").settings),
    "commit": (lambda shop: shop.topic.commit("reader", 1), lambda shop: shop.local.topic("orders").cursor("reader")),
    "drop": (lambda shop: shop.remote.drop_topic("orders", force=True), lambda shop: shop.local.topics()),
}
"""What a caller does, and how its effect is seen where the store is."""


@pytest.mark.parametrize("where", CUTS)
@pytest.mark.parametrize("what", CHANGES)
def test_a_change_whose_answer_is_lost_is_said_to_be_unknown_and_one_that_was_not_sent_is_retryable(
    shop: Shop, what: str, where: str
) -> None:
    act, effect = CHANGES[what]
    before = effect(shop)
    with shop.cut(where), pytest.raises(StorageError) as caught:
        act(shop)
    if where == BEFORE:
        assert type(caught.value) is StorageError and caught.value.retryable
        assert effect(shop) == before
        act(shop)
    else:
        assert isinstance(caught.value, OutcomeUnknown) and not caught.value.retryable
    if where == AMID_REQUEST:
        assert effect(shop) == before, "a server does nothing for half a request"
    else:
        eventually(lambda: effect(shop) != before)


@pytest.mark.parametrize("where", CUTS)
def test_the_same_holds_in_event_loops(shop: Shop, where: str) -> None:
    async def main() -> None:
        async with await aio.open(shop.proxy.url) as journal:
            queue = await journal.queue("jobs")
            for act in (
                lambda: journal.topic("orders").append("placed"),
                lambda: queue.push("more"),
                lambda: queue.take(),
            ):
                with shop.cut(where), pytest.raises(StorageError) as caught:
                    await act()
                assert isinstance(caught.value, OutcomeUnknown) == (where != BEFORE)
                assert caught.value.retryable == (where == BEFORE)

    asyncio.run(main())


READS: dict[str, Callable[[Shop], Any]] = {
    "latest": lambda shop: shop.topic.latest,
    "read": lambda shop: [event.seq for event in shop.topic.read()],
    "read a page": lambda shop: [event.seq for event in shop.topic.read(limit=5)],
    "read across": lambda shop: [event.seq for event in shop.remote.read()],
    "stats": lambda shop: shop.queue.stats().ready,
    "rehearsal": lambda shop: int(shop.queue.redrive(dry_run=True)),
}


@pytest.mark.parametrize("where", CUTS)
@pytest.mark.parametrize("what", READS)
def test_a_read_that_is_cut_stays_retryable(shop: Shop, what: str, where: str) -> None:
    wanted = READS[what](shop)
    with shop.cut(where), pytest.raises(StorageError) as caught:
        READS[what](shop)
    assert type(caught.value) is StorageError and caught.value.retryable
    assert READS[what](shop) == wanted


def test_a_large_append_that_is_cut_while_it_is_sent_is_not_done_and_may_be_tried_again(shop: Shop) -> None:
    shop.proxy.cut_next(9, after=70_000, of="request")
    drafts = [Draft("placed", LARGE) for _ in range(50)]
    with pytest.raises(StorageError) as caught:
        shop.topic.append_many(drafts)
    assert type(caught.value) is StorageError and caught.value.retryable
    assert shop.proxy.cut == 2, "on the connection that was kept, and on a new one"
    assert shop.local.topic("orders").latest == 1


def test_an_event_with_a_dedup_key_is_appended_again_until_the_answer_comes(shop: Shop) -> None:
    """What a caller does when the outcome is not known."""
    shop.proxy.cut_next(3)
    tries = 0
    while True:
        tries += 1
        try:
            receipt = shop.topic.append("paid", dedup="payment-7")
            break
        except OutcomeUnknown:
            continue
    assert tries == 4 and receipt.duplicate
    assert [event.kind for event in shop.local.topic("orders").read()] == ["placed", "paid"]


def test_a_change_under_way_while_its_journal_is_closed_is_not_said_to_be_undone(shop: Shop) -> None:
    shop.proxy.delay = 0.2
    shop.proxy.cut_next(1)
    assert isinstance(shop.remote, RemoteJournal)
    failed: list[BaseException] = []

    def append() -> None:
        try:
            shop.topic.append("placed")
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=append)
    thread.start()
    eventually(lambda: shop.local.topic("orders").latest == 2)
    shop.remote._client.closed = True  # as `close` does first; what is under way goes on
    thread.join(DEADLINE)
    assert isinstance(failed[0], OutcomeUnknown)
    with pytest.raises(Closed):
        shop.topic.append("placed")


def test_an_answer_for_which_there_is_no_room_does_not_refuse_what_is_done(journal: penstock.Journal) -> None:
    """A caller that is refused pushes again."""
    with serving(journal, limits=Limits(max_held=100_000)) as served, penstock.open(served.url) as remote:
        assert len(remote.queue("jobs").push_many(range(1_000))) == 1_000  # the receipts are larger than what is held
        assert len(journal.queue("jobs")) == 1_000


def test_a_failure_that_the_server_did_not_expect_leaves_a_change_unknown_and_a_read_not(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*given: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("penstock.server.api.binding.receipts_json", failing)
    with pytest.raises(OutcomeUnknown, match="its log says how"):
        shop.queue.push("more")
    assert len(shop.local.queue("jobs")) == 4


def test_a_worker_waits_for_a_server_that_is_away_and_raises_what_is_no_matter_of_waiting(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.remote.queues.WORKER_PAUSE", 0.01)
    monkeypatch.setattr("penstock.core.consuming.worker.WORKER_RESTART_PAUSE", 0.0)
    handled: list[object] = []
    worker = shop.queue.worker(lambda delivery: handled.append(delivery.payload)).start()
    with shop.proxy.away():
        shop.local.queue("jobs").push("while it is away")
    eventually(lambda: "while it is away" in handled)

    def take(*given: object, **options: object) -> None:
        raise StorageError("this is no server of ours")

    monkeypatch.setattr(shop.queue._backend, "_call", take)
    eventually(lambda: not worker.alive)
    with pytest.raises(StorageError, match="no server of ours"):
        worker.stop()
