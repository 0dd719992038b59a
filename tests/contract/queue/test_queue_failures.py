"""What becomes of a failed attempt: how long it waits, what is logged, and what is kept of the error."""

from __future__ import annotations

import pytest
from journals import eventually, on

from penstock import Delivery, Journal, ManualClock, Queue, Retry
from penstock.errors import ConfigError
from penstock.limits import MAX_ERROR_BYTES, MAX_TRACEBACK_BYTES
from penstock.queue.state import keys


def no_such_mailbox(delivery: Delivery) -> None:
    raise ValueError("no such mailbox")


def fail_once(queue: Queue) -> None:
    """Takes a message and fails with it, by hand."""
    with pytest.raises(ValueError), queue.take() as delivery:  # type: ignore[union-attr]
        assert delivery is not None
        no_such_mailbox(delivery)


def traceback_rows(journal: Journal, queue: Queue) -> int:
    with journal._engine.read() as snap:  # type: ignore[attr-defined]
        return sum(1 for _ in snap.scan(*keys.rows(queue._number, 0, b"t")))  # type: ignore[attr-defined]


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
    assert traceback_rows(journal, queue) == 1, "also while it waits for another attempt"
    fail_once(queue)
    (failure,) = queue.failures()
    assert failure.error == "ValueError: no such mailbox" and "in no_such_mailbox" in (failure.traceback or "")
    assert queue.redrive() == 1 and traceback_rows(journal, queue) == 0
    fail_once(queue)
    assert traceback_rows(journal, queue) == 1
    for delivery in queue.take_many(2):
        delivery.ack()
    assert traceback_rows(journal, queue) == 0 and len(queue) == 0


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
    assert traceback_rows(journal, queue) == 0


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
