"""Queues dropped between two looks of the server: none comes back because somebody looked at it, and nothing that was
meant for its messages is done to those of one made later."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

import penstock
from penstock.core.engine.contract import Snapshot
from penstock.core.local.backend import LocalJournal
from penstock.core.queue.operations import repair
from penstock.core.queue.operations.repair import discard_many
from penstock.core.queue.queue import LocalQueue
from penstock.errors import UnknownQueue
from penstock.server.acts import ACTS
from server.serving import Served
from server.test_acts import do, give_up, question, refusal


class Meanwhile:
    """Does something just before the n-th snapshot that a thread of the server takes."""

    def __init__(
        self, journal: penstock.Journal, patch: pytest.MonkeyPatch, look: int, act: Callable[[], object]
    ) -> None:
        assert isinstance(journal, LocalJournal)
        self.done = False
        self._act = act
        self._left = look
        self._test = threading.get_ident()
        self._lock = threading.RLock()
        self._read = journal._core.engine.read
        patch.setattr(journal._core.engine, "read", self._look)

    def _look(self) -> AbstractContextManager[Snapshot]:
        theirs = threading.get_ident() != self._test and not threading.current_thread().name.startswith("penstock-")
        with self._lock:
            if theirs and not self.done:
                self._left -= 1
                if self._left == 0:
                    self.done = True
                    self._act()
        return self._read()


# ── looking makes none ───────────────────────────────────────────────────────────────────────────────────────────────
LOOKS = ("", "/stats", "/messages", "/messages/1", "/peek", "/pending", "/failed", "/dead", "/consumers", "/schedules")


@pytest.mark.parametrize("look", [1, 2, 3])
@pytest.mark.parametrize("path", LOOKS)
def test_reading_makes_no_queue(
    served: Served, journal: penstock.Journal, monkeypatch: pytest.MonkeyPatch, path: str, look: int
) -> None:
    journal.queue("emails", max_attempts=7).push(1)
    meanwhile = Meanwhile(journal, monkeypatch, look, lambda: journal.drop_topic("emails", force=True))
    answer = served.get(f"/v1/queues/emails{path}")
    assert answer.status == 200 or answer.json["error"] in ("UnknownQueue", "UnknownEvent")
    if look == 1:
        assert meanwhile.done and answer.status == 404 and "PUT /v1/queues/emails" in answer.json["detail"]
    assert not meanwhile.done or journal.queues() == journal.topics() == []


def test_a_worker_that_asks_makes_no_queue(served: Served, journal: penstock.Journal) -> None:
    journal.queue("emails", max_attempts=7)
    with penstock.open(served.url) as remote:
        queue = remote.queue("emails")
        assert queue.take() is None
        journal.queue("emails").drop()
        with pytest.raises(UnknownQueue):
            queue.take()
        with pytest.raises(UnknownQueue):
            queue.push(1)
        with pytest.raises(UnknownQueue):
            queue.ack_many(["a" * 24])
    assert journal.queues() == []


ABOUT_A_QUEUE = sorted(name for name, act in ACTS.items() if act.subject == "queue" and name != "make-queue")


@pytest.mark.parametrize("act", ABOUT_A_QUEUE)
def test_no_act_makes_a_queue_that_is_dropped_meanwhile(
    served: Served, journal: penstock.Journal, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    fields = {
        "seq": "1",
        "group": "g",
        "name": "tick",
        "schedule": "tick",
        "when": "1h",
        "token": "a" * 24,
        "payload": "1",
    }
    wanted = {name: text for name, text in fields.items() if name in ACTS[act].fields}
    for look in (1, 2, 3, 4):
        queue = journal.queue("emails", max_attempts=7)
        queue.push(1)
        with monkeypatch.context() as patch:
            meanwhile = Meanwhile(journal, patch, look, lambda: journal.drop_topic("emails", force=True))
            served.post(f"/acts/{act}", {"fields": {"queue": "emails", **wanted}, "preview": True})
        assert not meanwhile.done or journal.queues() == [], look


@pytest.mark.parametrize("look", range(1, 12))
@pytest.mark.parametrize("path", ["/topics/emails/events/1", "/schedules", "/queues/emails", "/queues/emails?tab=dead"])
def test_no_page_makes_a_queue(
    served: Served, journal: penstock.Journal, monkeypatch: pytest.MonkeyPatch, path: str, look: int
) -> None:
    queue = journal.queue("emails", max_attempts=7)
    queue.push(1)
    queue.every(3600, name="tick")
    meanwhile = Meanwhile(journal, monkeypatch, look, queue.drop)
    answer = served.get(path)
    # A queue's page is about that queue: it may find it gone. An event's and that of all schedules go on without it.
    assert answer.status == 200 or path.startswith("/queues") or look < 3
    assert not meanwhile.done or journal.queues() == []


def test_the_question_about_a_topic_counts_what_its_queue_holds(served: Served, journal: penstock.Journal) -> None:
    journal.topic("plain").append("k")
    assert question(served, "drop-topic", topic="plain", force="yes") == (
        "Drop the topic plain with 1 event? This cannot be undone."
    )
    journal.queue("emails").push_many([1, 2])
    assert "with 2 events and 1 queue with 2 messages?" in question(served, "drop-topic", topic="emails", force="yes")
    assert journal.queues() == ["emails"]


# ── and one made anew has no message of it ───────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("listed", ["messages", "failed"])
def test_a_list_goes_on_with_the_messages_of_the_queue_made_anew(
    served: Served, journal: penstock.Journal, listed: str
) -> None:
    give_up(journal, "emails", ["old"] * 3)
    page = served.get(f"/v1/queues/emails/{listed}", limit=2).json
    journal.drop_topic("emails", force=True)
    give_up(journal, "emails", ["new"] * 3)
    found = served.get(f"/v1/queues/emails/{listed}", after=page["next"]).json[listed]
    assert [(one["event"]["seq"], one["event"]["payload"]) for one in found] == [(n, "new") for n in (4, 5, 6)]


def test_no_act_about_a_message_touches_one_made_later(served: Served, journal: penstock.Journal) -> None:
    queue = journal.queue("emails")
    queue.push("old", delay=60)
    fields = {"queue": "emails", "seq": "1"}
    assert "Delete 1 message, emails #1?" in question(served, "delete-message", **fields)
    journal.drop_topic("emails", force=True)
    queue = journal.queue("emails")
    precious = queue.push("precious", delay=60)
    for act, more in (("delete-message", {}), ("edit", {"payload": '"edited"'}), ("run-now", {})):
        assert "emails has no message 1" in refusal(served, act, **fields, **more)
        assert served.post(f"/acts/{act}", {"fields": {**fields, **more}}).status == 400
    assert [event.payload for event in queue] == ["precious"] and queue.stats().delayed == 1
    assert do(served, "run-now", queue="emails", seq=str(precious.seq)) == "1 message was made ready"
    assert do(served, "delete-message", queue="emails", seq=str(precious.seq)) == "1 message was deleted"


@pytest.mark.parametrize("made_anew", [False, True])
def test_what_was_given_up_is_deleted_and_nothing_made_later(
    served: Served, journal: penstock.Journal, monkeypatch: pytest.MonkeyPatch, made_anew: bool
) -> None:
    give_up(journal, "emails", ["given up"], dead_letter="graves")

    def dropped(queue: LocalQueue, seqs: list[int]) -> int:
        journal.drop_topic("graves", force=True)
        if made_anew:
            journal.queue("graves").push("precious")
        return discard_many(queue, seqs)

    monkeypatch.setattr(repair, "discard_many", dropped)
    assert do(served, "delete", queue="emails") == "0 messages were deleted"
    assert journal.queues() == (["emails", "graves"] if made_anew else ["emails"])
    assert not made_anew or [event.payload for event in journal.queue("graves")] == ["precious"]
