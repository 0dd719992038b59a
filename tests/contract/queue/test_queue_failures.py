"""What becomes of a failed attempt: how long it waits, what is logged, and what is kept of the error."""

from __future__ import annotations

import os

import pytest
from journals import eventually, on

from penstock import Delivery, Journal, ManualClock, Queue, Retry
from penstock.core.model.failure import Attempt
from penstock.core.queue.state import keys
from penstock.errors import ConfigError
from penstock.limits import ATTEMPTS_KEPT, MAX_ATTEMPT_ERROR_BYTES, MAX_ERROR_BYTES, MAX_TRACEBACK_BYTES

HOST = os.uname().nodename


def no_such_mailbox(delivery: Delivery) -> None:
    raise ValueError("no such mailbox")


def fail_once(queue: Queue) -> None:
    """Takes a message and fails with it, by hand."""
    with pytest.raises(ValueError), queue.take() as delivery:  # type: ignore[union-attr]
        assert delivery is not None
        no_such_mailbox(delivery)


def trail_rows(journal: Journal, queue: Queue) -> int:
    with journal._engine.read() as snap:  # type: ignore[attr-defined]
        record = queue._backend.registry.record(queue.name)
        prefix = keys.group_prefix(record.topic, 0, record.purges)
        return sum(1 for _ in snap.scan(prefix + b"t", prefix + b"u"))


# ── how long it waits ────────────────────────────────────────────────────────────────────────────────────────────────
def test_a_workers_retries_wait_longer_each_time(journal: Journal, clock: ManualClock) -> None:
    queue = journal.queue("mail", max_attempts=5)
    queue.push("a")
    attempts: list[int] = []

    def handle(delivery: Delivery) -> None:
        attempts.append(delivery.attempt)
        raise ConnectionError("down")

    with queue.worker(handle):
        for attempt, wait in enumerate((5, 30, 180, 600), 1):
            eventually(lambda attempt=attempt: len(attempts) == attempt and queue.stats().delayed == 1)  # type: ignore[misc]
            clock.advance(wait * 0.79)
            assert queue.stats().delayed == 1, "jitter takes a fifth off, and no more"
            clock.advance(wait * 0.21)
        eventually(lambda: queue.stats().failed == 1)
    assert attempts == [1, 2, 3, 4, 5]


@on("memory", "sqlite")
def test_the_budget_stays_three_and_what_is_given_back_by_hand_is_ready_at_once(journal: Journal) -> None:
    queue = journal.queue("mail")
    queue.push("a")
    assert queue.policy.retry is None and queue.policy.max_attempts == 3
    for _ in range(3):
        fail_once(queue)
    assert queue.stats().failed == 1


def test_an_explicit_retry_is_for_workers_and_for_hands(journal: Journal, clock: ManualClock) -> None:
    patient, hasty = journal.queue("patient", retry=60), journal.queue("hasty", retry=Retry.immediate())
    for queue in (patient, hasty):
        queue.push("a")
    fail_once(patient)
    assert patient.stats().delayed == 1
    with hasty.worker(no_such_mailbox):
        eventually(lambda: hasty.stats().failed == 1, "three attempts at once")
    patient.configure(retry=None)
    clock.advance(60)
    fail_once(patient)
    assert patient.stats().ready == 1


def test_the_workers_curve_has_jitter_that_can_be_seeded() -> None:
    assert [Retry.WORKER.delay(n, lambda: 0.0) for n in range(1, 6)] == [5, 30, 180, 600, 600]
    assert [round(Retry.WORKER.delay(n, lambda: 1.0)) for n in range(1, 5)] == [4, 24, 144, 480]


# ── what is kept ─────────────────────────────────────────────────────────────────────────────────────────────────────
def test_a_dead_letter_keeps_type_message_and_traceback(journal: Journal) -> None:
    queue = journal.queue("mail", max_attempts=1, dead_letter="grave")
    queue.push("a")
    with queue.worker(no_such_mailbox):
        eventually(lambda: len(journal.queue("grave")) == 1)
    (letter,) = queue.dead_letters()
    assert letter.error == "ValueError: no such mailbox"
    assert letter.traceback is not None and "in no_such_mailbox" in letter.traceback
    assert letter.traceback.startswith("Traceback") and letter.traceback.rstrip().endswith(letter.error)
    assert queue.redrive() == 1
    delivery = queue.take()
    assert delivery is not None and not [name for name in delivery.headers if name.startswith("dead-")]


def test_a_failed_message_keeps_its_traceback_until_it_is_settled(journal: Journal) -> None:
    queue = journal.queue("mail", max_attempts=2)
    queue.push_many(["a", "b"])
    fail_once(queue)
    assert trail_rows(journal, queue) == 1, "also while it waits for another attempt"
    fail_once(queue)
    (failure,) = queue.failures()
    assert failure.error == "ValueError: no such mailbox" and "in no_such_mailbox" in (failure.traceback or "")
    assert queue.redrive() == 1 and trail_rows(journal, queue) == 0
    fail_once(queue)
    assert trail_rows(journal, queue) == 1
    for delivery in queue.take_many(2):
        delivery.ack()
    assert trail_rows(journal, queue) == 0 and len(queue) == 0


def test_an_attempt_without_an_exception_forgets_the_traceback_of_the_one_before(
    journal: Journal, clock: ManualClock
) -> None:
    queue = journal.queue("mail", max_attempts=2, lease=10)
    queue.push_many(["a", "b"])
    for _ in range(2):
        delivery = queue.take()
        assert delivery is not None
        delivery.nack(error=KeyError("x"), delay=1)
    clock.advance(2)
    first, _ = queue.take_many(2)
    first.nack(error="by hand")
    clock.advance(11)
    assert queue.take() is None
    assert [(one.error, one.traceback) for one in queue.failures()] == [("by hand", None), ("the lease ended", None)]
    assert trail_rows(journal, queue) == 2, "their attempts are kept"


@on("memory", "sqlite")
def test_a_message_that_outlives_its_ttl_between_attempts_keeps_what_it_failed_with(
    journal: Journal, clock: ManualClock
) -> None:
    queue = journal.queue("mail", retention="dead_letter", dead_letter="grave")
    queue.push("a")
    fail_once(queue)
    journal.topic("mail").configure(max_events=1)
    queue.push("b")
    journal.maintain()
    (letter,) = queue.dead_letters()
    assert letter.reason == "retention" and "in no_such_mailbox" in (letter.traceback or "")


@on("memory", "sqlite")
def test_long_errors_lose_their_middle_and_odd_ones_are_kept_as_text(journal: Journal) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    def deep(depth: int) -> None:
        if not depth:
            raise ValueError("ü" * 20_000 + "\ud800 the end")
        (deep if depth % 2 else lambda rest: deep(rest))(depth - 1)

    queue = journal.queue("mail", max_attempts=1)
    queue.push_many(["long", "mute"])
    with pytest.raises(ValueError), queue.take() as delivery:  # type: ignore[union-attr]
        deep(150)
    with pytest.raises(Mute), queue.take() as delivery:  # type: ignore[union-attr]
        assert delivery is not None
        raise Mute
    long, mute = queue.failures()
    assert long.error is not None and long.traceback is not None and mute.error is not None
    assert len(long.error.encode()) <= MAX_ERROR_BYTES and len(long.traceback.encode()) <= MAX_TRACEBACK_BYTES
    assert long.error.startswith("ValueError: ü") and "bytes cut" in long.error and "the end" in long.error[-30:]
    assert long.traceback.startswith("Traceback") and "bytes cut" in long.traceback
    assert mute.error.startswith("Mute")
    with pytest.raises(ConfigError, match="text or an exception"):
        queue.push("x")
        delivery = queue.take()
        assert delivery is not None
        delivery.nack(error=404)  # type: ignore[arg-type]


def test_a_transaction_gives_back_with_an_exception(journal: Journal) -> None:
    queue = journal.queue("mail", max_attempts=1)
    queue.push("a")
    delivery = queue.take()
    assert delivery is not None
    with journal.transaction() as tx:
        tx.nack(delivery, error=ValueError("not now"))
    (failure,) = queue.failures()
    assert failure.error == "ValueError: not now" and failure.traceback == "ValueError: not now\n"


# ── what is logged ───────────────────────────────────────────────────────────────────────────────────────────────────
def test_a_failing_handler_is_logged_a_warning_at_first_and_an_error_once_given_up(
    journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    queue = journal.queue("mail", max_attempts=2, retry=0)
    queue.push("a")
    with caplog.at_level("WARNING", "penstock.queue"), queue.worker(no_such_mailbox):
        eventually(lambda: queue.stats().failed == 1)
    said = [record for record in caplog.records if "no such mailbox" in record.getMessage()]
    assert [record.levelname for record in said] == ["WARNING", "ERROR"]
    assert all(record.exc_info is not None for record in said) and "in no_such_mailbox" in caplog.text
    assert "tried again" in said[0].getMessage() and "given up" in said[1].getMessage()


# ── attempts, one by one ─────────────────────────────────────────────────────────────────────────────────────────────
def ends(attempts: list[Attempt]) -> list[tuple[int, str, str | None, str | None]]:
    return [(one.number, one.ended, one.consumer, one.error) for one in attempts]


def test_every_failed_attempt_is_kept_with_its_times_who_had_it_and_how_it_ended(
    journal: Journal, clock: ManualClock
) -> None:
    queue = journal.queue("mail", max_attempts=5, lease=10)
    queue.push("a")
    began = clock.now_ms()
    first = queue.take(consumer="ann")
    assert first is not None
    clock.advance(2)
    first.nack(error=ValueError("no such mailbox"))
    assert queue.take(consumer="ben") is not None
    clock.advance(30)  # its lease ends after ten of them
    third = queue.take()
    assert third is not None and third.attempt == 3
    clock.advance(5)
    [fourth] = queue.claim(min_idle=1, consumer="cleo")
    [message] = queue.messages()
    assert message.state == "in_flight" and message.attempts == 4
    assert ends(message.failed_attempts) == [
        (1, "failed", "ann", "ValueError: no such mailbox"),
        (2, "lapsed", "ben", "the lease ended"),
        (3, "claimed", None, None),
    ]
    times = [
        (one.delivered_at.timestamp() * 1000 - began, one.ended_at.timestamp() * 1000 - began)
        for one in message.failed_attempts
    ]
    assert times == [(0, 2_000), (2_000, 12_000), (32_000, 37_000)]
    ann, ben, unnamed = (one.host for one in message.failed_attempts)
    assert ann == ben and ann in (HOST, "127.0.0.1") and unnamed is None  # a machine's address, over http
    fourth.release()
    last = queue.take(consumer="dan")
    assert last is not None and last.attempt == 4, "what is released was no attempt"
    last.nack(error="never", dead=True)
    [failure] = queue.failures()
    assert ends(failure.failed_attempts)[2:] == [(3, "claimed", None, None), (4, "rejected", "dan", "never")]
    assert queue.redrive() == 1
    assert [one.failed_attempts for one in queue.messages()] == [[]], "a fresh budget, a fresh start"


def test_a_dead_letter_keeps_its_attempts_and_a_redriven_one_begins_anew(journal: Journal) -> None:
    queue = journal.queue("mail", max_attempts=2, dead_letter="grave")
    queue.push("a")
    for consumer in ("ann", "ben"):
        delivery = queue.take(consumer=consumer)
        assert delivery is not None
        delivery.nack(error=f"not for {consumer}")
    [letter] = queue.dead_letters()
    expected = [(1, "failed", "ann", "not for ann"), (2, "failed", "ben", "not for ben")]
    assert ends(letter.failed_attempts) == expected
    grave = journal.queue("grave")
    held = grave.take(consumer="sexton")
    assert held is not None
    held.nack(error="deeper")
    [message] = grave.messages()
    assert ends(message.failed_attempts) == [(1, "failed", "sexton", "deeper")], "its own, as a message of this queue"
    assert ends(next(iter(queue.dead_letters())).failed_attempts) == expected
    assert grave.move(journal.queue("museum")) == 1
    [moved] = journal.queue("museum").dead_letters()
    assert ends(moved.failed_attempts) == expected and journal.queue("museum").messages()[0].failed_attempts == []
    assert journal.queue("museum").redrive() == 1
    back = queue.take()
    assert back is not None and back.attempt == 1 and not back.headers


def test_the_newest_attempts_are_kept_and_long_errors_cut(journal: Journal) -> None:
    queue = journal.queue("mail", max_attempts=40)
    queue.push("a")
    for n in range(25):
        delivery = queue.take()
        assert delivery is not None
        delivery.nack(error=f"{n} " + "é" * 4_000)
    [message] = queue.messages()
    kept = message.failed_attempts
    assert [one.number for one in kept] == list(range(26 - ATTEMPTS_KEPT, 26))
    assert all(len((one.error or "").encode()) <= MAX_ATTEMPT_ERROR_BYTES for one in kept)
    assert kept[-1].error is not None and kept[-1].error.startswith("24 é") and "bytes cut" in kept[-1].error


def test_only_messages_that_failed_have_a_row_and_it_goes_with_them(journal: Journal) -> None:
    queue = journal.queue("mail", max_attempts=3, dead_letter="grave")
    queue.push_many(range(6))
    plain, released, *_ = deliveries = queue.take_many(6)
    plain.ack()
    released.release()
    assert trail_rows(journal, queue) == 0
    for delivery in deliveries[2:]:
        delivery.nack()
    assert trail_rows(journal, queue) == 4
    again = {delivery.seq: delivery for delivery in queue.take_many(5)}
    again[3].ack()
    again[4].nack(dead=True)
    again[2].ack()
    assert trail_rows(journal, queue) == 2
    again[5].nack()
    assert queue.discard([5]) == 1 and trail_rows(journal, queue) == 1
    queue.purge()
    assert trail_rows(journal, queue) == 0


@on("memory")
def test_headers_that_anybody_may_write_are_read_with_care(journal: Journal) -> None:
    grave = journal.queue("grave")
    odd = ("[", "[1]", "{}", '[{"number": "x"}]', "null", '[{"x":' + "[" * 3000)
    for text in odd:
        grave.push("a", headers={"dead-queue": "mail", "dead-reason": "x", "dead-failed-attempts": text})
    assert [one.failed_attempts for one in grave.dead_letters()] == [[]] * len(odd)


@on("memory", "sqlite")
def test_why_a_message_was_given_up_is_said_in_the_same_words_with_and_without_dead_letters(journal: Journal) -> None:
    reasons = {}
    for name, policy in {"kept": None, "sent": "dead"}.items():
        queue = journal.queue(name, max_attempts=1, dead_letter=policy)
        queue.push_many(["rejected", "failed"])
        for delivery in queue.take_many(2):
            delivery.nack(error="no", dead=delivery.payload == "rejected")
        given_up = queue.failures() if policy is None else queue.dead_letters()
        reasons[name] = [(failure.event.payload, failure.reason) for failure in given_up]
    assert reasons["kept"] == reasons["sent"] == [("rejected", "rejected"), ("failed", "attempts exhausted")]


# ── choosing by the reason ───────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("dead_letter", [None, "mail.dead"])
def test_messages_are_sent_back_by_their_error(journal: Journal, dead_letter: str | None) -> None:
    queue = journal.queue("mail", max_attempts=2, dead_letter=dead_letter)
    queue.push_many(["a", "b", "c"])
    for error in ("TimeoutError: upstream", "ValueError: no such mailbox", "TimeoutError: database"):
        for _ in range(2):
            delivery = queue.take()
            assert delivery is not None
            delivery.nack(error=error)
    queue.push("d")
    delivery = queue.take()
    assert delivery is not None
    delivery.nack(error="TimeoutError: rejected", dead=True)
    assert queue.redrive(where="error contains 'Timeout'", dry_run=True) == 3
    assert queue.redrive(where="reason = 'rejected' and attempts = 1", dry_run=True) == 1
    assert queue.redrive(where="error contains 'Timeout' and payload in ('a', 'b')", dry_run=True) == 1
    assert queue.redrive(where="failed_at > '2099-01-01'", dry_run=True) == 0
    assert queue.redrive(where="failed_at < '2099-01-01'", dry_run=True) == 4
    assert queue.redrive(where="error contains 'Timeout' and attempts = 2") == 2
    assert [delivery.payload for delivery in queue.take_many(9)] == ["a", "c"]


def test_groups_send_back_by_their_own_errors(journal: Journal) -> None:
    news = journal.queue("news", mode="fanout", max_attempts=1)
    for group in ("mail", "sms"):
        news.add_group(group)
    news.push("x")
    for group, error in (("mail", "SMTPError: full"), ("sms", "TimeoutError: modem")):
        delivery = news.take(group=group)
        assert delivery is not None
        delivery.nack(error=error)
    assert news.redrive(where="error startswith 'Timeout'", dry_run=True) == 1
    assert news.redrive(where="error contains 'nothing'", dry_run=True) == 0


def test_events_that_were_not_given_up_have_no_error(journal: Journal) -> None:
    queue = journal.queue("mail")
    for ask in (
        lambda: list(journal.topic("mail").read(where="error contains 'Timeout'")),
        lambda: queue.move(journal.queue("other"), where="attempts > 1"),
    ):
        with pytest.raises(ConfigError, match="say why a message was given up"):
            ask()
