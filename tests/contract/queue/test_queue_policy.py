"""Policies: stored values, retries, budgets, dead letters, failed messages, time to live, sizes, dedup keys."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from journals import on

import penstock
from penstock import Draft, Journal, ManualClock, Queue, QueuePolicy, Retry
from penstock.core.local.backend import LocalJournal
from penstock.core.queue.policy import parse_retry, write_retry
from penstock.errors import ConfigError, InvalidName, PolicyMismatch, QueueFull, UnknownQueue

Reopen = Callable[[Journal], Journal]


def seqs(queue: Queue, limit: int = 100) -> list[int]:
    return [delivery.seq for delivery in queue.take_many(limit)]


def exhaust(queue: Queue, error: str = "no") -> int:
    """Takes and fails one message until it is not delivered any more; returns how often it was."""
    count = 0
    while (delivery := queue.take()) is not None:
        delivery.nack(error=error)
        count += 1
    return count


# ── the policy itself ────────────────────────────────────────────────────────────────────────────────────────────────
def test_the_defaults_are_those_of_the_stub() -> None:
    policy = QueuePolicy()
    assert (policy.mode, policy.lease, policy.max_attempts, policy.dead_letter) == ("work", 30, 3, None)
    assert (policy.retry, policy.max_size, policy.ttl, policy.priority) == (None, None, None, False)
    assert policy.dedup_window == 300


def test_a_policy_is_stored_with_its_queue(journal: Journal, reopen: Reopen) -> None:
    retry = Retry.exponential(timedelta(seconds=2), factor=3, cap=60, jitter=0.5)
    queue = journal.queue(
        "jobs", lease=timedelta(minutes=1), max_attempts=7, dead_letter="grave", retry=retry, ttl=3600
    )
    expected = QueuePolicy(lease=60.0, max_attempts=7, dead_letter="grave", retry=retry, ttl=3600.0)
    assert queue.policy == expected
    again = reopen(journal)
    assert again.queue("jobs").policy == expected
    assert again.queue("jobs", lease=60, max_attempts=7).policy == expected


def test_another_policy_than_the_stored_one_is_refused_and_changes_nothing(journal: Journal) -> None:
    journal.queue("jobs", lease=10)
    for other in (
        {"lease": 11},
        {"dead_letter": "x"},
        {"retry": Retry.fixed(1)},
        {"priority": True},
    ):
        with pytest.raises(PolicyMismatch, match="configure"):
            journal.queue("jobs", **other)
    assert journal.queue("jobs").policy == QueuePolicy(lease=10)


def test_a_queue_keeps_its_mode(journal: Journal) -> None:
    queue = journal.queue("jobs")
    queue.push_many(range(3))
    for change in (queue.configure, lambda **given: journal.queue("jobs", **given)):
        assert change(mode="work") and queue.policy.mode == "work"
        with pytest.raises(PolicyMismatch, match=r"keeps its mode: make another queue .* move the messages"):
            change(mode="fanout")
    other = journal.queue("news", mode="fanout")
    assert queue.move(other) == 3
    for group in ("a", "b"):
        assert [one.payload for one in other.take_many(9, group=group)] == [0, 1, 2]


def test_configure_changes_what_it_is_given(journal: Journal) -> None:
    queue = journal.queue("jobs", lease=10, max_attempts=2)
    assert queue.configure(lease=20, dead_letter="grave") == QueuePolicy(lease=20, max_attempts=2, dead_letter="grave")
    assert queue.configure() == queue.policy == journal.queue("jobs", lease=20).policy
    assert queue.configure(dead_letter=None, retry=5).retry == Retry.fixed(5)


def test_bad_policies_are_named(journal: Journal) -> None:
    bad = [
        ({"leese": 3}, "no policy 'leese'"),
        ({"mode": "both"}, "mode"),
        ({"lease": -1}, "lease"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"max_attempts": True}, "max_attempts"),
        ({"max_size": 0}, "max_size"),
        ({"max_size": 2**64}, "max_size"),
        ({"max_in_flight": "many"}, "max_in_flight"),
        ({"ttl": 0}, "ttl"),
        ({"priority": 1}, "priority"),
        ({"retry": "often"}, "retry"),
        ({"dedup_window": -1}, "dedup_window"),
        ({"dead_letter": "jobs"}, "its own"),
    ]
    for policy, words in bad:
        with pytest.raises(ConfigError, match=words):
            journal.queue("jobs", **policy)  # type: ignore[arg-type]
    with pytest.raises(InvalidName):
        journal.queue("jobs", dead_letter="a/b")
    assert journal.queues() == []


# ── retries ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_retry_policies_are_values() -> None:
    assert Retry.fixed(3) == Retry.fixed(timedelta(seconds=3)) != Retry.fixed(4)
    assert {Retry.fixed(3), Retry.fixed(3), Retry.immediate()} == {Retry.immediate(), Retry.fixed(3)}
    for retry in (Retry.immediate(), Retry.linear(2, cap=9), Retry.exponential(1, jitter=0.2), Retry.SVIX):
        assert msgspec.json.decode(msgspec.json.encode(retry), type=Retry) == retry
    assert str(Retry.exponential(1, cap=60, jitter=0.5)) == "exponential(1, factor=2, cap=60, jitter=0.5)"
    assert str(Retry.immediate()) == "immediate()" and "SVIX" not in str(Retry.SVIX)


def test_a_retry_is_written_as_people_write_it() -> None:
    for text in (
        "default",
        "immediate",
        "fixed:5s",
        "linear:10s",
        "linear:10s:5m",
        "exponential:1s:1m",
        "schedule:5s,1m",
    ):
        assert write_retry(parse_retry(text)) == text
    assert parse_retry("svix") == Retry.SVIX == parse_retry(write_retry(Retry.SVIX))
    assert write_retry(Retry.exponential(1, factor=3)) == write_retry(Retry.exponential(1, jitter=0.5)) == ""
    for wrong in ("soon", "fixed", "fixed:1s:2s", "immediate:1s", "schedule:"):
        with pytest.raises(ConfigError, match="is no retry"):
            parse_retry(wrong)


def test_retry_curves() -> None:
    def delays(retry: Retry, count: int = 5) -> list[float]:
        return [retry.delay(failures) for failures in range(1, count + 1)]

    assert delays(Retry.immediate()) == [0] * 5
    assert delays(Retry.fixed(7)) == [7] * 5
    assert delays(Retry.linear(2)) == [2, 4, 6, 8, 10] and delays(Retry.linear(2, cap=5)) == [2, 4, 5, 5, 5]
    assert delays(Retry.exponential(1)) == [1, 2, 4, 8, 16]
    assert delays(Retry.exponential(1, factor=10, cap=500)) == [1, 10, 100, 500, 500]
    assert delays(Retry.schedule(1, 5)) == [1, 5, 5, 5, 5]
    assert delays(Retry.SVIX, 8) == [5, 300, 1800, 7200, 18_000, 36_000, 36_000, 36_000]
    jittered = Retry.exponential(8, jitter=0.5)
    assert jittered.delay(1, lambda: 0.0) == 8 and jittered.delay(1, lambda: 1.0) == 4 and 4 <= jittered.delay(1) <= 8
    assert Retry.exponential(1).delay(5000) == Retry.linear(1e9).delay(9) < 1e9


def test_bad_retry_policies_are_refused() -> None:
    for make in (
        lambda: Retry.fixed(-1),
        lambda: Retry.schedule(),
        lambda: Retry.exponential(1, factor=0.5),
        lambda: Retry.exponential(1, jitter=2),
        lambda: Retry.linear(float("nan")),
        lambda: Retry.linear(1, cap="x"),  # type: ignore[arg-type]
    ):
        with pytest.raises(ConfigError):
            make()


def test_the_policys_delay_comes_before_the_next_attempt(journal: Journal, clock: ManualClock) -> None:
    queue = journal.queue("jobs", retry=Retry.schedule(5, 60), max_attempts=4)
    queue.push(1)
    for wait in (5, 60, 60):
        delivery = queue.take()
        assert delivery is not None
        delivery.nack()
        clock.advance(wait - 0.001)
        assert queue.take() is None and queue.stats().delayed == 1
        clock.advance(0.001)
    delivery = queue.take()
    assert delivery is not None and delivery.attempt == 4


def test_a_nack_s_own_delay_goes_before_the_policy_s(journal: Journal, clock: ManualClock) -> None:
    queue = journal.queue("jobs", retry=Retry.fixed(100))
    queue.push(1)
    queue.take().nack(delay=0)  # type: ignore[union-attr]
    delivery = queue.take()
    assert delivery is not None
    for bad in ({"delay": -1}, {"error": 5}):
        with pytest.raises(ConfigError):
            delivery.nack(**bad)  # type: ignore[arg-type]
    delivery.nack(delay=3)
    clock.advance(3)
    assert seqs(queue) == [1]


# ── giving up ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_last_attempt_leads_to_the_dead_letters_with_everything_about_it(
    journal: Journal, clock: ManualClock
) -> None:
    queue = journal.queue("jobs", dead_letter="grave", max_attempts=2)
    started = datetime.fromtimestamp(clock.now_ms() / 1000, UTC)
    receipt = queue.push({"n": 1}, kind="job", headers={"trace": "t"}, key="k")
    queue.take().nack()  # type: ignore[union-attr]
    clock.advance(10)
    queue.take(consumer="w").nack(error="ValueError: too bad")  # type: ignore[union-attr]
    assert queue.take() is None and len(queue) == 0 and list(queue) == [] and list(queue.failed()) == []
    grave = journal.queue("grave")
    (event,) = grave
    assert (event.payload, event.kind, event.key, event.headers["trace"]) == ({"n": 1}, "job", "k", "t")
    assert event.headers["dead-reason"] == "attempts exhausted" and event.headers["dead-attempts"] == "2"
    assert (event.headers["dead-queue"], event.headers["dead-seq"], event.headers["dead-id"]) == (
        "jobs",
        "1",
        receipt.id,
    )
    assert event.headers["dead-error"] == "ValueError: too bad"
    assert datetime.fromisoformat(event.headers["dead-first-delivered-at"]) == started
    assert datetime.fromisoformat(event.headers["dead-last-delivered-at"]) == started + timedelta(seconds=10)
    assert event.causation_id == receipt.id and event.correlation_id == receipt.id
    assert event.occurred_at == started and event.recorded_at == started + timedelta(seconds=10)


def test_a_dead_letter_queue_is_an_ordinary_queue_with_a_fresh_budget(journal: Journal) -> None:
    queue = journal.queue("jobs", dead_letter="grave", max_attempts=1)
    queue.push("x", max_attempts=1)
    exhaust(queue)
    grave = journal.queue("grave")
    assert grave.policy == QueuePolicy()
    assert exhaust(grave) == 3 and [event.payload for event in grave.failed()] == ["x"]


def test_dead_letters_go_back_where_they_came_from(journal: Journal) -> None:
    left = journal.queue("left", dead_letter="grave", max_attempts=1)
    right = journal.queue("right", dead_letter="grave", max_attempts=1)
    left.push_many(["l1", "l2"], headers={"own": "1"})
    right.push("r1", key="k")
    grave = journal.queue("grave")
    grave.push("pushed here by hand")
    exhaust(left)
    exhaust(right)
    assert grave.redrive(dry_run=True) == 3 and len(grave) == 4
    held = grave.take_many(2)
    assert [delivery.payload for delivery in held] == ["pushed here by hand", "l1"]
    assert grave.redrive() == 2, "a letter in somebody's hands stays there"
    delivery = left.take()
    assert delivery is not None and (delivery.payload, delivery.attempt, delivery.seq) == ("l2", 1, 3)
    assert dict(delivery.headers) == {"own": "1"}
    back = right.take()
    assert back is not None and (back.payload, back.key) == ("r1", "k")
    held[1].release()
    assert left.redrive() == 1 and [event.payload for event in left] == ["l2", "l1"]
    assert [event.payload for event in grave] == ["pushed here by hand"]


def test_redrive_with_a_limit_a_filter_and_another_target(journal: Journal) -> None:
    queue = journal.queue("jobs", dead_letter="grave", max_attempts=1)
    repaired = journal.queue("repaired")
    queue.push_many(range(6))
    exhaust(queue)
    grave = journal.queue("grave")
    assert grave.redrive(limit=0) == 0
    assert grave.redrive(to=repaired, limit=2, where=lambda event: event.payload % 2 == 1) == 2
    assert [event.payload for event in repaired] == [1, 3] and [event.payload for event in grave] == [0, 2, 4, 5]
    plain = journal.queue("plain", max_attempts=1)
    plain.push_many(range(3))
    exhaust(plain)
    assert plain.redrive(to=repaired, limit=2) == 2 and [event.payload for event in repaired] == [1, 3, 0, 1]
    assert [event.payload for event in plain.failed()] == [2] and len(plain) == 0
    with penstock.open("memory:") as other, pytest.raises(ConfigError, match="another journal"):
        grave.redrive(to=other.queue("x"))


# ── limits ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_a_full_queue_refuses_and_says_how_full(journal: Journal, clock: ManualClock) -> None:
    queue = journal.queue("jobs", max_size=3, max_attempts=1)
    queue.push_many([1, 2])
    with pytest.raises(QueueFull, match="holds 2 messages of at most 3"):
        queue.push_many([3, 4])
    queue.push(3, delay=10, dedup="third")
    delivery = queue.take()
    with pytest.raises(QueueFull):
        queue.push(4)
    assert queue.push("again", dedup="third").duplicate
    assert delivery is not None
    delivery.nack()  # failed: it does not take room any more
    assert queue.push(4).seq == 4
    queue.configure(max_size=None)
    queue.push_many(range(10))


def test_a_full_dead_letter_queue_still_takes_what_would_be_lost(journal: Journal) -> None:
    journal.queue("grave", max_size=1).push("already full")
    queue = journal.queue("jobs", dead_letter="grave", max_attempts=1)
    queue.push("x")
    exhaust(queue)
    assert [event.payload for event in journal.queue("grave")] == ["already full", "x"]


def test_messages_past_their_time_to_live_go_to_the_dead_letters_if_there_are_any(
    journal: Journal, clock: ManualClock
) -> None:
    queue = journal.queue("jobs", ttl=60, dead_letter="grave", lease=30)
    queue.push_many(range(3), delay=0)
    queue.push("slow", delay=70)
    queue.push("keyed", key="k")
    held = queue.take()
    clock.advance(60)
    assert queue.take() is None
    clock.advance(10)
    assert queue.take() is None and len(queue) == 0
    assert held is not None
    letters = list(journal.queue("grave"))
    assert sorted(map(str, (event.payload for event in letters))) == ["0", "1", "2", "keyed", "slow"]
    assert {event.headers["dead-reason"] for event in letters} == {"expired"}


def test_messages_that_wait_behind_their_key_outlive_their_ttl_too(journal: Journal, clock: ManualClock) -> None:
    queue = journal.queue("jobs", ttl=60, lease=900)
    queue.push_many([Draft("m", number, key="k") for number in range(40)])
    clock.advance(30)
    queue.push_many([Draft("m", number, key="k") for number in range(40, 60)])
    held = queue.take()
    assert held is not None and queue.take() is None and len(queue) == 60
    clock.advance(30)
    assert (len(queue), queue.stats().ready, len(queue.messages())) == (21, 20, 21)
    held.ack()
    assert [delivery.payload for delivery in queue.take_many(5)] == [40] and len(queue) == 20


# ── names ────────────────────────────────────────────────────────────────────────────────────────────────────────────
@on("memory", "sqlite")
def test_a_queue_is_not_made_where_the_caller_says_so(journal: Journal) -> None:
    with pytest.raises(UnknownQueue, match="there is no queue 'mails': make it"):
        journal.queue("mails", create=False)
    assert journal.queues() == []
    journal.queue("mail", max_attempts=5)
    with pytest.raises(UnknownQueue, match="there is no queue 'mails'; did you mean 'mail'"):
        journal.queue("mails", create=False)
    assert journal.queues() == ["mail"]
    assert journal.queue("mail", create=False, max_attempts=5).policy.max_attempts == 5
    with pytest.raises(PolicyMismatch):
        journal.queue("mail", create=False, max_attempts=6)


@on("memory")
def test_a_misspelt_argument_is_named_with_the_nearest_that_is_known(journal: Journal) -> None:
    topic, queue = journal.topic("orders"), journal.queue("mail")
    misspelt: list[tuple[Callable[..., Any], tuple[Any, ...], str, str]] = [
        (journal.queue, ("other",), "max_atempts", "max_attempts"),
        (queue.configure, (), "leese", "lease"),
        (queue.submit, (1,), "priorty", "priority"),
        (queue.push_many, ([1],), "delays", "delay"),
        (topic.append, ("placed",), "kye", "key"),
        (topic.submit, ("placed",), "dedupe", "dedup"),
        (topic.configure, (), "max_ages", "max_age"),
        (journal.outbox().stage, ("orders", "placed"), "correlatoin", "correlation"),
    ]
    for call, given, wrong, right in misspelt:
        with pytest.raises(ConfigError, match=f"{wrong!r}; did you mean {right!r}"):
            call(*given, **{wrong: 1})
    assert len(queue) == 0 and topic.latest == 0 and journal.queues() == ["mail"]


def test_a_program_that_owns_its_queue_updates_the_stored_policy(
    journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    journal.queue("emails", rate="5/s").push(1)
    with pytest.raises(PolicyMismatch, match='policy="update"'):
        journal.queue("emails", rate="9/s")
    queue = journal.queue("emails", policy="update", rate="9/s", max_attempts=7)
    assert (queue.policy.rate, queue.policy.max_attempts, len(queue)) == ("9/s", 7, 1)
    assert "rate 5/s → 9/s, max_attempts 3 → 7" in caplog.text
    if isinstance(journal, LocalJournal):
        [record] = journal.topic("penstock.audit").read(key="emails")
        assert record.payload["changes"] == {"rate": ["5/s", "9/s"], "max_attempts": [3, 7]}
    caplog.clear()
    assert journal.queue("emails", policy="update", rate="9/s").policy.max_attempts == 7 and not caplog.text


def test_an_update_of_the_policy_keeps_the_mode(journal: Journal) -> None:
    journal.queue("emails")
    with pytest.raises(PolicyMismatch, match="keeps its mode"):
        journal.queue("emails", policy="update", mode="fanout")
    with pytest.raises(ConfigError, match='"match" or "update"'):
        journal.queue("emails", policy="replace")  # type: ignore[arg-type]
