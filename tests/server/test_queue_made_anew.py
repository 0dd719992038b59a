"""Queues dropped, or dropped and made anew, between two looks of the server: none comes back because somebody looked at
it, and nothing that was meant for the one is done to the other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

import penstock
from penstock.engine.contract import Snapshot
from penstock.errors import TopicDropped, UnknownQueue
from penstock.local.journal import LocalJournal
from penstock.protocol.messages import MessageQuery
from penstock.queue.operations.repair import discard_many
from penstock.queue.queue import LocalQueue
from penstock.remote.queues import listing
from penstock.server.acts import messages as acts
from penstock.server.acts.act import ACTS
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


def anew(journal: penstock.Journal, *contents: object, name: str = "emails", **policy: Any) -> penstock.Queue:
    """Drops a queue with its topic, and makes one of its name."""
    journal.drop_topic(name, force=True)
    queue = journal.queue(name, **policy)
    queue.push_many(contents)
    return queue


def payloads(queue: penstock.Queue) -> list[Any]:
    return [event.payload for event in queue]


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


def test_a_worker_that_asks_makes_no_queue(
    served: Served, journal: penstock.Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal.queue("emails", max_attempts=7)
    with penstock.open(served.url) as remote:
        queue = remote.queue("emails")
        meanwhile = Meanwhile(journal, monkeypatch, 2, journal.queue("emails").drop)
        with pytest.raises(UnknownQueue):
            for _ in range(9):
                queue.take()
    assert meanwhile.done and journal.queues() == []


ABOUT_A_QUEUE = sorted(name for name, act in ACTS.items() if act.subject == "queue" and name != "make-queue")


@pytest.mark.parametrize("act", ABOUT_A_QUEUE)
def test_no_act_makes_a_queue_that_is_dropped_meanwhile(
    served: Served, journal: penstock.Journal, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    fields = {"seq": "1", "group": "g", "name": "tick", "when": "1h", "token": "a" * 24, "payload": "1"}
    wanted = {name: text for name, text in fields.items() if name in ACTS[act].fields}
    for look in (1, 2, 3, 4):
        queue = journal.queue("emails", max_attempts=7)
        queue.push(1)
        with monkeypatch.context() as patch:
            meanwhile = Meanwhile(journal, patch, look, lambda: journal.drop_topic("emails", force=True))
            served.post(f"/acts/{act}", {"fields": {"queue": "emails", **wanted}, "preview": True})
        assert not meanwhile.done or journal.queues() == [], look


@pytest.mark.parametrize("look", range(1, 12))
@pytest.mark.parametrize("path", ["/topics/emails/events/1", "/schedules", "/queues/emails", "/queues/emails/messages"])
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
        "Drop the topic plain with 1 event, 0 consumers and 0 queues? This cannot be undone."
    )
    journal.queue("emails").push_many([1, 2])
    assert "0 consumers and 1 queue with 2 messages?" in question(served, "drop-topic", topic="emails", force="yes")
    assert journal.queues() == ["emails"]


# ── lists are of one queue ───────────────────────────────────────────────────────────────────────────────────────────
def test_pages_tell_which_queue_they_are_of_and_insist_on_it(served: Served, journal: penstock.Journal) -> None:
    give_up(journal, "emails", [1, 2, 3])
    for path, listed in (("messages", "messages"), ("failed", "failed")):
        page = served.get(f"/v1/queues/emails/{path}", limit=2).json
        assert page["number"] == served.get("/v1/topics/emails").json["number"] and page["next"] == 2
        rest = served.get(f"/v1/queues/emails/{path}", after=2, number=page["number"]).json
        assert [one["event"]["seq"] for one in rest[listed]] == [3]
    number = served.get("/v1/queues/emails/messages").json["number"]
    anew(journal, max_attempts=1)
    give_up(journal, "emails", [1, 2, 3])
    for path in ("messages", "failed"):
        answer = served.get(f"/v1/queues/emails/{path}", after=2, number=number)
        assert (answer.status, answer.json["error"]) == (410, "TopicDropped")
        assert len(served.get(f"/v1/queues/emails/{path}", after=2).json[path]) == 1


def test_the_place_of_a_dead_letter_is_of_one_queue(served: Served, journal: penstock.Journal) -> None:
    give_up(journal, "emails", [1, 2, 3], dead_letter="graves")
    place = served.get("/v1/queues/emails/dead", limit=2).json["next"]
    assert len(served.get("/v1/queues/emails/dead", after=place).json["dead"]) == 1
    anew(journal, name="graves")
    give_up(journal, "emails", [1, 2, 3], dead_letter="graves")
    answer = served.get("/v1/queues/emails/dead", after=place)
    assert (answer.status, answer.json["error"]) == (410, "TopicDropped")
    assert len(served.get("/v1/queues/emails/dead").json["dead"]) == 3


def pages_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "LISTED", 2)
    monkeypatch.setattr(listing, "MessageQuery", lambda after: MessageQuery(after=after, limit=2))


LISTS: dict[str, Callable[[penstock.Queue], Any]] = {
    "everything": iter,
    "failures": lambda queue: queue.failures(),
    "dead letters": lambda queue: queue.dead_letters(),
}


@pytest.mark.parametrize("what", LISTS)
def test_a_list_from_afar_is_of_one_queue(
    served: Served, journal: penstock.Journal, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    policy = {"dead_letter": "graves"} if what == "dead letters" else {}
    give_up(journal, "emails", ["old"] * 5, **policy)
    pages_of_two(monkeypatch)
    with penstock.open(served.url) as remote:
        queue = remote.queue("emails")
        assert len(list(LISTS[what](queue))) == 5
        found = []
        with pytest.raises(TopicDropped):
            for number, one in enumerate(LISTS[what](queue)):
                found.append(one)
                if number == 1:
                    anew(journal, name="graves" if policy else "emails", **({} if policy else {"max_attempts": 1}))
                    give_up(journal, "emails", ["new"] * 5, **policy)
        assert len(found) == 2


def test_messages_from_afar_are_of_one_queue(
    served: Served, journal: penstock.Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal.queue("emails").push_many(["old"] * 5)
    pages_of_two(monkeypatch)
    with penstock.open(served.url) as remote:
        queue = remote.queue("emails")
        assert [one.seq for one in queue.messages(limit=4)] == [1, 2, 3, 4]
        ask, asked = type(queue)._ask, 0

        def made_anew(self: Any, *args: Any, **given: Any) -> Any:
            nonlocal asked
            asked += 1
            if asked == 2:
                anew(journal, *["new"] * 5)
            return ask(self, *args, **given)

        monkeypatch.setattr(type(queue), "_ask", made_anew)
        with pytest.raises(TopicDropped):
            queue.messages(limit=4)


# ── acts are about what was shown ────────────────────────────────────────────────────────────────────────────────────
def before_discarding(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    def discard(queue: LocalQueue, seqs: list[int], number: int | None = None) -> int:
        act()
        return discard_many(queue, seqs, number)

    monkeypatch.setattr(acts, "discard_many", discard)


def test_what_was_given_up_is_deleted_and_no_other(
    served: Served, journal: penstock.Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_up(journal, "emails", ["given up"])
    before_discarding(monkeypatch, lambda: anew(journal, "precious"))
    assert do(served, "delete", queue="emails") == "0 messages were deleted"
    assert payloads(journal.queue("emails")) == ["precious"]


def test_dead_letters_are_deleted_and_no_others(
    served: Served, journal: penstock.Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_up(journal, "emails", ["given up", "too"], dead_letter="graves")
    assert do(served, "delete", queue="emails", scope="filter", where="payload = 'too'") == "1 message was deleted"
    before_discarding(monkeypatch, lambda: anew(journal, "precious", name="graves"))
    assert do(served, "delete", queue="emails") == "0 messages were deleted"
    assert payloads(journal.queue("graves")) == ["precious"]
    give_up(journal, "emails", ["given up"], dead_letter="graves")
    before_discarding(monkeypatch, lambda: journal.drop_topic("graves", force=True))
    assert do(served, "delete", queue="emails") == "0 messages were deleted"
    assert journal.queues() == ["emails"]


def test_one_message_is_deleted_or_edited_and_no_other(
    served: Served, journal: penstock.Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal.queue("emails").push("old")
    before_discarding(monkeypatch, lambda: anew(journal, "precious"))
    assert do(served, "delete-message", queue="emails", seq="1") == "0 messages were deleted"
    replace = acts.replace

    def edit(queue: LocalQueue, *args: Any) -> Any:
        anew(journal, "precious")
        return replace(queue, *args)

    monkeypatch.setattr(acts, "replace", edit)
    answer = served.post("/acts/edit", {"fields": {"queue": "emails", "seq": "1", "payload": '"edited"'}})
    assert answer.status == 400 and "emails has no message 1" in answer.json["detail"]
    assert payloads(journal.queue("emails")) == ["precious"]


def test_a_form_is_about_the_message_that_it_showed(served: Served, journal: penstock.Journal) -> None:
    queue = journal.queue("emails")
    shown = queue.push("old", delay=60)
    fields = {"queue": "emails", "seq": "1", "id": shown.id}
    assert "Delete 1 message, emails #1?" in question(served, "delete-message", **fields)
    for page in ("/queues/emails/messages", "/topics/emails/events/1"):
        assert shown.id in served.get(page).data.decode().partition("delete-message")[2], page
    queue = anew(journal)
    precious = queue.push("precious", delay=60)
    for act, more in (("delete-message", {}), ("edit", {"payload": '"edited"'}), ("run-now", {})):
        assert "emails has no message 1" in refusal(served, act, **fields, **more)
        assert served.post(f"/acts/{act}", {"fields": {**fields, **more}}).status == 400
    assert payloads(queue) == ["precious"] and queue.stats().delayed == 1
    assert do(served, "run-now", queue="emails", seq="1", id=precious.id) == "1 message was made ready"
    assert do(served, "delete-message", queue="emails", seq="1", id=precious.id) == "1 message was deleted"


def test_delayed_messages_are_run_now_and_no_others(
    served: Served, journal: penstock.Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal.queue("emails").push("old", delay=60)
    change = LocalQueue._change

    def made_anew(self: LocalQueue, *args: Any) -> Any:
        monkeypatch.undo()
        anew(journal).push("precious", delay=60)
        return change(self, *args)

    monkeypatch.setattr(LocalQueue, "_change", made_anew)
    assert do(served, "run-now", queue="emails") == "0 messages were made ready"
    assert journal.queue("emails").stats().delayed == 1


def test_an_event_stands_as_the_message_that_it_is(
    served: Served, journal: penstock.Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never with the state of another message that has its position in a queue made anew."""
    journal.queue("emails")
    for look in range(1, 9):
        anew(journal, "the first")
        with monkeypatch.context() as patch:
            Meanwhile(journal, patch, look, lambda: give_up_anew(journal))
            answer = served.get("/topics/emails/events/1")
        page = answer.data.decode()
        assert answer.status in (200, 404) and not ("the first" in page and "mailbox full" in page), look


def give_up_anew(journal: penstock.Journal) -> None:
    held = anew(journal, "the second", max_attempts=1).take()
    assert held is not None
    held.nack(error="mailbox full")
