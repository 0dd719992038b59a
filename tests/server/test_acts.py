"""Acts of the console over HTTP: what they ask, what they do, whom they refuse, what the audit topic says of them."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

import penstock
from penstock.core.queue.policy import FIELDS, WORDS, Retry
from penstock.server.acts import ACTS
from penstock.server.forms import policy_form
from server.serving import ADMIN, READ, WRITE, Answer, Served
from waiting import eventually


def ask(served: Served, act: str, /, **fields: Any) -> Answer:
    return served.post(f"/acts/{act}", {"fields": fields, "preview": True})


def do(served: Served, act: str, /, **fields: Any) -> str:
    answer = served.post(f"/acts/{act}", {"fields": fields})
    assert answer.status == 200, answer.json
    return str(answer.json["says"])


def question(served: Served, act: str, /, **fields: Any) -> str:
    answer = ask(served, act, **fields)
    assert answer.status == 200, answer.json
    return str(answer.json.get("question", ""))


def refusal(served: Served, act: str, /, **fields: Any) -> str:
    answer = ask(served, act, **fields)
    assert answer.status in (400, 404), answer.json
    return str(answer.json["detail"])


def give_up(journal: penstock.Journal, name: str, payloads: list[Any], **policy: Any) -> None:
    queue = journal.queue(name, max_attempts=1, **policy)
    queue.push_many(payloads, kind="mail", headers={"source": "test"})
    for delivery in queue.take_many(len(payloads)):
        delivery.nack(error="no")


# ── who may ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_every_act_is_refused_to_those_who_may_only_read(guarded: Served, journal: penstock.Journal) -> None:
    journal.queue("q").push("x")
    assert len(ACTS) >= 18
    for name, act in ACTS.items():
        for preview in (True, False):
            body = {"fields": {act.subject: "q"}, "preview": preview}
            assert guarded.ask("POST", f"/acts/{name}", body, token=READ).status == 403, name
            if act.role == "admin":
                assert guarded.ask("POST", f"/acts/{name}", body, token=WRITE).status == 403, name
    assert len(journal.queue("q")) == 1
    assert "penstock.audit" not in journal.topics()


def test_what_is_done_is_written_down_with_who_did_it(guarded: Served, journal: penstock.Journal) -> None:
    journal.queue("jobs").push_many([1, 2, 3])
    assert question(guarded, "purge", queue="jobs").startswith("Remove 3 messages of jobs")
    assert "penstock.audit" not in journal.topics()  # a question is no act
    body = {"fields": {"queue": "jobs", "payload": '"y"' + " " * 2000}}
    assert guarded.ask("POST", "/acts/push", body, token=WRITE).status == 200
    assert do(guarded, "purge", queue="jobs") == "4 messages were removed"
    first, second = journal.topic("penstock.audit").read()
    assert (first.kind, first.key, first.payload["role"]) == ("console.push", "jobs", "write")
    assert len(first.payload["fields"]["payload"]) <= 501
    assert second.kind == "console.purge"
    assert second.payload["role"] == "admin" and second.payload["says"] == "4 messages were removed"
    assert second.payload["address"] == "127.0.0.1"
    assert first.payload["who"] != second.payload["who"] and len(second.payload["who"]) == 10
    assert ADMIN not in second.raw.decode() and WRITE not in first.raw.decode()


def test_unknown_acts_fields_and_shapes_are_refused(served: Served, journal: penstock.Journal) -> None:
    journal.queue("q")
    assert "cannot 'explode'" in refusal(served, "explode")
    assert "has no field 'queu'" in refusal(served, "purge", queu="q")
    assert served.post("/acts/purge", {"fields": {"queue": "q"}, "dry": True}).status == 400
    assert "there is no queue 'z'" in refusal(served, "purge", queue="z")
    assert "queue is missing" in refusal(served, "purge")


def test_what_destroys_is_asked_in_red_and_what_destroys_much_by_name(
    served: Served, journal: penstock.Journal
) -> None:
    journal.queue("jobs").push_many([1, 2])
    asked = {
        act: ask(served, act, queue="jobs", **fields).json
        for act, fields in {"purge": {}, "drop-queue": {}, "delete-message": {"seq": "1"}, "pause": {}}.items()
    }
    assert {act: said.get("typed") for act, said in asked.items() if said.get("danger")} == {
        "purge": "jobs",
        "drop-queue": "jobs",
        "delete-message": None,
    }


# ── topics ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_publishing_checks_the_json_and_asks_before_it_makes_a_topic(served: Served, journal: penstock.Journal) -> None:
    assert "payload: this is no JSON" in refusal(served, "publish", topic="t", kind="k", payload="{")
    assert "headers: this is no JSON object of texts" in refusal(
        served, "publish", topic="t", kind="k", headers='{"a": 1}'
    )
    assert question(served, "publish", topic="t", kind="k") == "There is no topic t yet. Make it with this event?"
    fields = {"topic": "t", "kind": "k", "payload": '{"n": 1}', "key": "a", "headers": '{"source": "x"}'}
    assert do(served, "publish", **fields) == "k was published as t #1"
    assert question(served, "publish", **fields) == ""
    (event,) = journal.topic("t").read()
    assert (event.payload, event.key, event.headers["source"]) == ({"n": 1}, "a", "x")


def test_retention_is_written_in_units_and_says_how_many_events_go(served: Served, journal: penstock.Journal) -> None:
    journal.topic("t").append_many([penstock.Draft("k", n) for n in range(30)])
    fields = {"topic": "t", "max_age": "1h30m", "max_events": "10", "max_bytes": "64MiB"}
    asked = question(served, "retention", **fields)
    assert "20 events of 30 will be removed" in asked and "the newest 10 events" in asked
    do(served, "retention", **fields)
    settings = journal.topic("t").settings
    assert (settings.max_age, settings.max_events, settings.max_bytes) == (5400.0, 10, 64 << 20)
    assert "'soon' is no duration" in refusal(served, "retention", topic="t", max_age="soon")
    assert question(served, "retention", topic="new").startswith("Make the topic new")
    do(served, "retention", topic="new", max_age="7d")
    assert "new" in journal.topics()


def test_trimming_says_how_many_events_and_which_consumer_waits(served: Served, journal: penstock.Journal) -> None:
    topic = journal.topic("t")
    topic.append_many([penstock.Draft("k", n) for n in range(30)])
    topic.commit("slow", 5)
    asked = question(served, "compact", topic="t", through="20")
    assert "Remove 20 events of t" in asked and "The slowest consumer is at 5" in asked
    assert do(served, "compact", topic="t", through="20") == (
        "5 events were removed from t, 25 remain; the consumer slow has not read further"
    )
    assert do(served, "compact", topic="t", through="20", force="yes") == "15 events were removed from t, 10 remain"


def test_a_consumer_is_moved_by_position_time_event_and_end(served: Served, journal: penstock.Journal) -> None:
    topic = journal.topic("t")
    topic.append_many([penstock.Draft("k", n) for n in range(30)])
    topic.commit("billing", 20)

    def seek(to: str, value: str = "") -> str:
        return do(served, "seek", topic="t", consumer="billing", to=to, value=value)

    assert "'abc' is no whole number: write one like 1200" in refusal(
        served, "seek", topic="t", consumer="billing", to="position", value="abc"
    )
    assert "is beyond it" in refusal(served, "seek", topic="t", consumer="billing", value="31")
    assert "will skip 10 events" in question(served, "seek", topic="t", consumer="billing", to="end")
    assert "is new to t" in question(served, "seek", topic="t", consumer="other", to="start")
    assert seek("event", "8") == "billing is at 7 of t (was at 20); 23 events ahead"
    assert seek("end") == "billing is at 30 of t (was at 7); 0 events ahead"
    assert seek("time", "1h") == "billing is at 0 of t (was at 30); 30 events ahead"
    assert "30 events" in question(served, "forget", topic="t", consumer="billing")
    do(served, "forget", topic="t", consumer="billing")
    assert topic.cursors() == {}


def test_the_console_drops_a_topic_after_asking(served: Served, journal: penstock.Journal) -> None:
    topic = journal.topic("orders")
    topic.append_many([penstock.Draft("placed", n) for n in range(3)])
    topic.commit("billing", 1)
    assert "Drop the topic orders with 3 events?" in question(served, "drop-topic", topic="orders")
    assert "1 consumer" in question(served, "drop-topic", topic="orders", force="yes")
    refused = served.post("/acts/drop-topic", {"fields": {"topic": "orders"}})
    assert refused.status == 409 and "'billing'" in refused.json["detail"]
    assert do(served, "drop-topic", topic="orders", force="yes") == "the topic orders was dropped with 3 events"
    assert "orders" not in journal.topics()


# ── queues ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_a_retry_that_cannot_be_read_is_refused(served: Served, journal: penstock.Journal) -> None:
    journal.queue("q")
    assert "'often' is no duration" in refusal(served, "policy", queue="q", retry="fixed:often")
    assert "'soon' is no retry: write default, immediate, fixed:5s" in refusal(
        served, "policy", queue="q", retry="soon"
    )


def test_a_policy_is_changed_in_units_and_nothing_else_with_it(served: Served, journal: penstock.Journal) -> None:
    queue = journal.queue("q", ttl=60, retry=Retry.exponential(5, jitter=0.5), priority=True)
    queue.push_many([1, 2])
    fields = {"queue": "q", "lease": "5m", "max_attempts": "7", "retry": "as it is", "ttl": "1m", "dedup_window": "5m"}
    assert question(served, "policy", **fields) == "Change lease, max_attempts of q, with 2 messages in it?"
    do(served, "policy", **fields)
    policy = queue.policy
    assert (policy.lease, policy.max_attempts, policy.ttl, policy.retry) == (
        300,
        7,
        60,
        Retry.exponential(5, jitter=0.5),
    )
    assert policy.priority


def test_every_field_of_a_policy_is_in_the_form_and_is_changed_by_it(served: Served, journal: penstock.Journal) -> None:
    journal.queue("q")
    page = served.ask("GET", "/queues/q?tab=policy", headers={"Accept": "text/html"}).data.decode()
    form = page[page.index('<form id="policy"') :].partition("</form>")[0]
    names = re.findall(r'<(?:input|select) [^>]*?name="(\w+)"', form)
    changeable = [name for name in FIELDS if name != "mode"]
    assert sorted(names) == sorted([*changeable, "queue"]) and sorted(WORDS) == sorted(FIELDS)
    refused = ask(served, "policy", queue="q", mode="fanout")
    assert refused.status == 409 and "move the messages" in refused.json["detail"]
    written = {
        "lease": ("2m", 120.0),
        "max_attempts": ("5", 5),
        "retry": ("schedule:5s,1m", Retry.schedule(5, 60)),
        "dead_letter": ("q.dead", "q.dead"),
        "retention": ("dead_letter", "dead_letter"),
        "ttl": ("7d", 7 * 86_400.0),
        "warn_after": ("1d", 86_400.0),
        "max_size": ("1,000", 1000),
        "max_in_flight": ("50", 50),
        "max_in_flight_per_key": ("2", 2),
        "rate": ("100/s", "100/s"),
        "rate_per_key": ("10/m", "10/m"),
        "fair_by": ("tenant", "tenant"),
        "debounce": ("10s", 10.0),
        "debounce_limit": ("1m", 60.0),
        "throttle": ("250ms", 0.25),
        "breaker": ("5/1m", "5/1m"),
        "breaker_pause": ("1m", 60.0),
        "priority": ("yes", True),
        "feed": ("yes", True),
        "dedup_window": ("none", None),
    }
    assert sorted(written) == sorted(changeable), "a field that this test does not know"
    needs = {"retention": {"dead_letter": "q.dead"}, "debounce_limit": {"debounce": "10s"}}
    for name, (text, value) in written.items():
        queue = journal.queue(f"queue.{name}")
        before = msgspec.structs.asdict(queue.policy)
        given = {"queue": queue.name, name: text, **needs.get(name, {})}
        assert name in question(served, "policy", **given)
        do(served, "policy", **given)
        after = msgspec.structs.asdict(queue.policy)
        assert after[name] == value, name
        assert {one for one in FIELDS if after[one] != before[one]} == {name, *needs.get(name, {})}
        shown = next(one for one in policy_form(queue.policy) if one.name == name).value
        assert question(served, "policy", queue=queue.name, **{name: shown}).startswith("Nothing is different"), name
        do(served, "policy", queue=queue.name, **dict.fromkeys({name, *needs.get(name, {})}, ""))
        assert msgspec.structs.asdict(queue.policy) == before, "an emptied field has its default again"


def test_a_policy_that_contradicts_itself_is_refused_before_anybody_is_asked(
    served: Served, journal: penstock.Journal
) -> None:
    before = journal.queue("q").policy
    assert "not both" in refusal(served, "policy", queue="q", throttle="1s", debounce="1s")
    assert "rate: 'fast' is no rate" in refusal(served, "policy", queue="q", rate="fast")
    assert "is no duration" in refusal(served, "policy", queue="q", breaker_pause="soon")
    assert "max in flight per key: 'few' is no whole number" in refusal(
        served, "policy", queue="q", max_in_flight_per_key="few"
    )
    assert "True or False" in refusal(served, "policy", queue="q", priority="perhaps")
    assert "needs a dead-letter queue" in refusal(served, "make-queue", queue="new", retention="dead_letter")
    assert journal.queue("q").policy == before and "new" not in journal.queues()


def test_queues_groups_and_schedules_are_made_and_dropped(served: Served, journal: penstock.Journal) -> None:
    do(served, "make-queue", queue="news", mode="fanout", max_attempts="5", lease="1m")
    assert "already" in refusal(served, "make-queue", queue="news")
    queue = journal.queue("news")
    assert (queue.policy.mode, queue.policy.max_attempts, queue.policy.lease) == ("fanout", 5, 60)
    do(served, "add-group", queue="news", name="mail")
    do(served, "push", queue="news", payload='{"a": 1}', delay="0s")
    assert "1 message will no longer wait" in question(served, "remove-group", queue="news", group="mail")
    do(served, "remove-group", queue="news", group="mail")
    assert queue.groups() == []
    do(served, "add-schedule", queue="news", name="nightly", when="0 6 * * mon", payload='{"n": 1}', kind="tick")
    do(served, "add-schedule", queue="news", name="often", when="5m")
    assert {one.name: one.interval for one in queue.schedules()} == {"nightly": None, "often": 300}
    assert "Replace it?" in question(served, "add-schedule", queue="news", name="often", when="6m")
    assert "was pushed" in do(served, "run-schedule", queue="news", schedule="nightly")
    newest = next(journal.topic("news").read(reverse=True))
    assert (newest.kind, newest.payload, newest.headers["schedule"]) == ("tick", {"n": 1}, "nightly")
    do(served, "remove-schedule", queue="news", schedule="often")
    asked = question(served, "drop-queue", queue="news")
    assert "2 messages" in asked and "1 schedule" in asked
    do(served, "drop-queue", queue="news")
    assert "news" not in journal.queues()


# ── messages ─────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_messages_are_sent_back_by_choice_by_filter_and_all(served: Served, journal: penstock.Journal) -> None:
    give_up(journal, "emails", [{"n": n} for n in range(10)], dead_letter="emails.dead")
    some = [one.event.id for one in journal.queue("emails").dead_letters()][:2]
    assert "choose some messages first" in refusal(served, "redrive", queue="emails", scope="chosen")
    assert "Send 2 messages back" in question(served, "redrive", queue="emails", scope="chosen", ids=some)
    assert do(served, "redrive", queue="emails", scope="chosen", ids=some) == "2 messages were sent back"
    assert "a condition is missing" in refusal(served, "redrive", queue="emails", scope="filter")
    assert "cannot be read" in refusal(served, "redrive", queue="emails", scope="filter", where="payload.n >")
    assert do(served, "redrive", queue="emails", scope="filter", where="payload.n >= 8") == "2 messages were sent back"
    assert do(served, "redrive", queue="emails", scope="all", limit="5") == "5 messages were sent back"
    assert do(served, "redrive", queue="emails", scope="all") == "1 message was sent back"
    assert "no message that was given up" in refusal(served, "redrive", queue="emails", scope="all")
    assert journal.queue("emails").stats().ready == 10


def test_what_was_given_up_is_deleted_by_choice_and_all(served: Served, journal: penstock.Journal) -> None:
    give_up(journal, "emails", list(range(4)), dead_letter="emails.dead")
    give_up(journal, "plain", list(range(3)))
    journal.queue("plain").push("alive")
    (one, *_) = [letter.event.id for letter in journal.queue("emails").dead_letters()]
    assert "Delete 1 message that emails gave up" in question(
        served, "delete", queue="emails", scope="chosen", ids=[one]
    )
    assert do(served, "delete", queue="emails", scope="chosen", ids=[one]) == "1 message was deleted"
    assert "has a rate" in refusal(served, "delete", queue="emails", scope="all", rate="5")
    assert do(served, "delete", queue="emails", scope="all", rate="", where="") == "3 messages were deleted"
    assert do(served, "delete", queue="plain", scope="all") == "3 messages were deleted"
    assert [event.payload for event in journal.queue("plain")] == ["alive"]


def test_a_message_is_edited_once_however_often_it_is_sent(served: Served, journal: penstock.Journal) -> None:
    give_up(journal, "emails", [{"to": "nobody"}], dead_letter="emails.dead")
    (letter,) = journal.queue("emails").dead_letters()
    fields = {"queue": "emails.dead", "seq": str(letter.event.seq), "payload": '{"to": "ann"}'}
    assert "Push 1 edited message to emails" in question(served, "edit", **fields)
    assert do(served, "edit", **fields) == "the edited message is emails #2"
    assert served.post("/acts/edit", {"fields": fields}).status == 400  # it is gone
    delivery = journal.queue("emails").take()
    assert delivery is not None and delivery.payload == {"to": "ann"}
    assert delivery.event.kind == "mail" and dict(delivery.event.headers) == {"source": "test"}
    assert delivery.event.causation_id == letter.event.id
    assert list(journal.queue("emails.dead")) == []


def test_what_is_in_flight_is_released_settled_and_given_up_but_not_deleted(
    served: Served, journal: penstock.Journal
) -> None:
    queue = journal.queue("jobs", dead_letter="jobs.dead")
    queue.push_many(["a", "b", "c"])
    first, second, third = queue.take_many(3, consumer="worker-1")
    assert "is in flight" in refusal(served, "delete-message", queue="jobs", seq="1")
    assert "from worker-1" in question(served, "release", queue="jobs", token=first.token)
    assert do(served, "release", queue="jobs", token=first.token) == "jobs #1 is ready again"
    with pytest.raises(penstock.errors.StaleDelivery):
        first.ack()
    assert "which worker-1 still works on" in question(served, "settle", queue="jobs", token=second.token)
    do(served, "settle", queue="jobs", token=second.token, outcome="done")
    do(served, "settle", queue="jobs", token=third.token, outcome="dead")
    assert [event.payload for event in journal.queue("jobs.dead")] == ["c"]
    assert do(served, "delete-message", queue="jobs", seq="1") == "1 message was deleted"
    assert len(queue) == 0


def test_a_queue_and_a_group_are_paused_and_go_on(served: Served, journal: penstock.Journal) -> None:
    queue = journal.queue("jobs")
    queue.push_many(["a", "b", "c"])
    held = queue.take()
    assert held is not None
    asked = question(served, "pause", queue="jobs")
    assert asked == (
        "Pause jobs? 2 ready messages will wait until it is resumed; 1 message in flight may still be settled."
    )
    assert do(served, "pause", queue="jobs") == "jobs is paused"
    assert do(served, "pause", queue="jobs") == "jobs was paused already"
    assert queue.take() is None
    assert question(served, "resume", queue="jobs") == ""
    assert do(served, "resume", queue="jobs") == "jobs goes on"
    assert queue.take() is not None
    news = journal.queue("news", mode="fanout")
    news.add_group("a")
    news.add_group("b")
    news.push("x")
    assert question(served, "pause", queue="news").startswith("Pause news? 2 ready messages")
    assert do(served, "pause", queue="news", group="a") == "news/a is paused"
    assert news.take(group="a") is None and news.take(group="b") is not None
    assert "group" in refusal(served, "pause", queue="news", group="nobody")


def test_delayed_messages_are_run_now_edited_and_deleted(served: Served, journal: penstock.Journal) -> None:
    queue = journal.queue("jobs", priority=True)
    for name in "abcd":
        queue.push(name, delay=3600, priority=3)
    assert question(served, "run-now", queue="jobs") == "Run 4 delayed messages of jobs now?"
    assert do(served, "run-now", queue="jobs", seq="2") == "1 message was made ready"
    delivery = queue.take()
    assert delivery is not None and delivery.payload == "b"
    delivery.ack()
    (due,) = {one.due for one in queue.messages("delayed") if one.seq == 1}
    assert do(served, "edit", queue="jobs", seq="1", payload='"A"') == "the edited message is jobs #5"
    (edited,) = [one for one in queue.messages("delayed") if one.seq == 5]
    assert edited.event.payload == "A" and edited.priority == 3
    assert due is not None and edited.due is not None and abs((edited.due - due).total_seconds()) < 1
    assert do(served, "delete-message", queue="jobs", seq="3") == "1 message was deleted"
    assert do(served, "run-now", queue="jobs") == "2 messages were made ready"
    assert "waits for its time" in refusal(served, "run-now", queue="jobs")


def test_messages_are_sent_back_so_many_a_second(served: Served, journal: penstock.Journal) -> None:
    give_up(journal, "emails", list(range(30)), dead_letter="emails.dead")
    fields = {"queue": "emails", "scope": "filter", "where": "payload < 20", "rate": "40"}
    assert question(served, "redrive", **fields) == (
        "Send 20 messages back to their queue, 40 a second, with a fresh budget?"
    )
    begun = datetime.now(UTC)
    assert do(served, "redrive", **fields) == "20 messages will be sent back, 40 a second"
    queue = journal.queue("emails")
    eventually(lambda: len(queue) == 20)
    assert sorted(event.payload for event in queue) == list(range(20))
    took = max(event.recorded_at for event in queue) - begun
    assert took.total_seconds() > 0.45, "not all of them at once: the last one has 19 before it"
    assert "a second" in refusal(served, "redrive", queue="emails", rate="0")
    assert "no whole number" in refusal(served, "redrive", queue="emails", rate="fast")


def test_deep_json_is_refused_with_a_sentence(served: Served, journal: penstock.Journal) -> None:
    journal.queue("q")
    journal.topic("t").append("k")
    deep = "[" * 200_000 + "]" * 200_000  # more than any Python nests
    pushed, published = {"queue": "q", "payload": deep}, {"topic": "t", "kind": "k"}
    typed = (("push", pushed), ("publish", {**published, "payload": deep}), ("publish", {**published, "headers": deep}))
    for act, fields in typed:
        for preview in (True, False):
            answer = served.post(f"/acts/{act}", {"fields": fields, "preview": preview})
            assert answer.status == 400 and "is nested too deeply" in answer.json["detail"]
    assert journal.topic("t").latest == 1 and len(journal.queue("q")) == 0


# ── editing: one message stays one, whatever its queue's policy says of pushes ────────────────────────────────────────
def edit(served: Served, queue: str, seq: int, payload: str = '"new"') -> Answer:
    return served.post("/acts/edit", {"fields": {"queue": queue, "seq": str(seq), "payload": payload}})


def contents(queue: penstock.Queue) -> list[Any]:
    return [event.payload for event in queue]


@pytest.mark.parametrize("policy", [{"throttle": 60}, {"debounce": 60}, {"retry": Retry.fixed(60)}, {"max_size": 1}])
def test_a_message_with_a_key_is_there_after_it_was_edited(
    served: Served, journal: penstock.Journal, policy: dict[str, Any]
) -> None:
    queue = journal.queue("jobs", **policy)
    queue.push("old", key="a")
    if "retry" in policy:
        delivery = queue.take()
        assert delivery is not None
        delivery.nack()
    assert edit(served, "jobs", 1).json["says"] == "the edited message is jobs #2"
    assert contents(queue) == ["new"]
    taken = queue.take()
    assert taken is not None and (taken.payload, taken.key) == ("new", "a")


def test_a_dead_letter_that_was_pushed_a_moment_ago_is_edited_and_not_lost(
    served: Served, journal: penstock.Journal
) -> None:
    queue = journal.queue("jobs", throttle=60, dead_letter="jobs.dead", max_attempts=1)
    queue.push("old", key="a")
    queue.take().nack()  # type: ignore[union-attr]
    assert edit(served, "jobs.dead", 1).json["says"] == "the edited message is jobs #2"
    assert contents(queue) == ["new"] and contents(journal.queue("jobs.dead")) == []


def test_an_edited_letter_has_its_priority_and_its_own_budget_again(served: Served, journal: penstock.Journal) -> None:
    queue = journal.queue("jobs", priority=True, dead_letter="jobs.dead")
    queue.push("low", priority=3)
    queue.push("old", priority=9, max_attempts=7)
    queue.take().nack(dead=True)  # type: ignore[union-attr]
    assert edit(served, "jobs.dead", 1).status == 200
    found = {one.event.payload: (one.priority, one.max_attempts) for one in queue.messages()}
    assert found == {"low": (3, 3), "new": (9, 7)}


def test_groups_that_are_done_with_a_message_do_not_get_the_edited_one(
    served: Served, journal: penstock.Journal
) -> None:
    queue = journal.queue("news", mode="fanout", dead_letter="news.dead", max_attempts=1)
    for group in ("mail", "search"):
        queue.add_group(group)
    queue.push("old")
    queue.push("other")
    queue.take(group="mail").nack()  # type: ignore[union-attr]
    queue.take(group="search").ack()  # type: ignore[union-attr]
    assert edit(served, "news.dead", 1).status == 200
    assert [event.payload for event in queue.peek(5, group="mail")] == ["other", "new"]
    assert [event.payload for event in queue.peek(5, group="search")] == ["other"]
    queue.take(group="search").ack()  # type: ignore[union-attr]
    assert edit(served, "news", 2, '"newer"').status == 200
    assert [event.payload for event in queue.peek(5, group="mail")] == ["new", "newer"]
    assert queue.peek(5, group="search") == []


def test_a_letter_of_a_group_that_is_gone_stays(served: Served, journal: penstock.Journal) -> None:
    queue = journal.queue("news", mode="fanout", dead_letter="news.dead", max_attempts=1)
    for group in ("mail", "search"):
        queue.add_group(group)
    queue.push("old")
    queue.take(group="mail").nack()  # type: ignore[union-attr]
    queue.remove_group("mail")
    assert "no group 'mail'" in edit(served, "news.dead", 1).json["detail"]
    assert contents(journal.queue("news.dead")) == ["old"] and len(queue) == 1


def test_a_schedule_takes_a_cron_line_with_seconds_and_numbers_are_plain(
    served: Served, journal: penstock.Journal
) -> None:
    queue = journal.queue("jobs")
    for name, when in (("six", "*/10 0 6 * * *"), ("five", "0 6 * * *"), ("often", "1h30m"), ("word", "@daily")):
        fields = {"queue": "jobs", "name": name, "when": when}
        assert served.post("/acts/add-schedule", {"fields": fields}).status == 200
    found = {one.name: one.cron or one.interval for one in queue.schedules()}
    assert found == {"six": "*/10 0 6 * * *", "five": "0 6 * * *", "often": 5400.0, "word": "@daily"}
    answer = served.post("/acts/redrive", {"fields": {"queue": "jobs", "limit": "²"}})
    assert answer.status == 400 and "whole number" in answer.json["detail"]


def test_pages_take_digits_that_are_no_number_for_text(served: Served, journal: penstock.Journal) -> None:
    journal.queue("jobs").push("x")
    assert served.get("/topics/jobs/events/%C2%B2").status == 404
    for path in ("/queues/jobs?after=%C2%B2", "/?topics-page=%C2%B2", "/topics/jobs?consumers-page=%C2%B2"):
        assert served.get(path).status == 200, path


def test_events_are_erased_and_the_record_of_it_does_not_say_whose(served: Served, journal: penstock.Journal) -> None:
    topic = journal.topic("t")
    topic.append_many([penstock.Draft("k", {"n": n, "name": "Ada"}, key=f"customer-{n % 2}") for n in range(10)])
    do(served, "publish", topic="t", kind="k", payload='{"name": "Ada"}', key="customer-1")
    asked = question(served, "erase", topic="t", key="customer-1")
    assert asked.startswith("Erase the contents of 6 events of t")
    assert do(served, "erase", topic="t", key="customer-1") == "6 events were erased in t"
    assert [event.seq for event in topic.read() if event.erased] == [2, 4, 6, 8, 10, 11]
    assert [event.kind for event in journal.topic("penstock.audit").read()] == ["console.publish", "console.erase"]
    for event in journal.topic("penstock.audit").read():
        assert b"customer-1" not in event.raw and b"Ada" not in event.raw and event.payload != {}
    assert "say which events" in served.post("/acts/erase", {"fields": {"topic": "t"}}).json["detail"]


def test_who_erases_over_http_is_said_in_the_event(guarded: Served, journal: penstock.Journal) -> None:
    journal.topic("t").append_many([penstock.Draft("k", {"n": n, "name": "Ada"}, key=f"c{n}") for n in range(4)])
    with penstock.open(guarded.url, token=ADMIN) as remote:
        report = remote.topic("t").erase(key="c1", by="ada")
        assert (report.events, report.topic) == (1, "t") and report.remaining
        assert remote.topic("t").mask(["name"], where="payload.n >= 2").events == 2
        remote.maintain()
        events = list(remote.topic("t").read())
    assert [event.erased for event in events] == [False, True, False, False]
    assert [event.payload for event in events] == [
        {"n": 0, "name": "Ada"},
        None,
        {"n": 2, "name": None},
        {"n": 3, "name": None},
    ]
    assert re.fullmatch(r"ada \([0-9a-f]+\)", events[1].headers["erased-by"])
    assert re.fullmatch(r"[0-9a-f]+", events[2].headers["masked-by"])
    with penstock.open(guarded.url, token=WRITE) as remote, pytest.raises(penstock.errors.Denied, match="admin"):
        remote.topic("t").erase(key="c0")
