"""What a consumer is told of a delivery is in the store first: the next writer knows who holds what, and since when."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from object_homes import Home, insist
from store_proxy import StoreProxy

import penstock
from buffer.emulator import Emulator
from penstock.core.consuming.delivery import Delivery
from penstock.errors import Fenced, OutcomeUnknown, StorageError
from waiting import DEADLINE, eventually


def test_a_message_taken_before_a_failover_stays_taken_until_its_lease_ends(home: Home) -> None:
    clock = penstock.ManualClock()
    first = home.open(clock=clock)
    mail = first.queue("mail")
    mail.configure(lease=60)
    mail.push({"n": 1})
    mail.push({"n": 2})
    done = mail.take()
    assert done is not None
    done.ack()
    taken = mail.take()
    assert taken is not None

    second = home.open(clock=clock, takeover=True)
    again = second.queue("mail")
    assert again.take() is None, "it is somebody's still, who may be at work on another machine"
    with pytest.raises((Fenced, OutcomeUnknown)):
        taken.ack()
    with pytest.raises(Fenced):
        mail.take()
    clock.advance(61)
    found = again.take()
    assert found is not None and found.payload == {"n": 2} and found.attempt == 2
    found.ack()
    clock.advance(61)
    assert again.take() is None, "what was acknowledged before stays so"


@pytest.mark.parametrize(
    ("act", "free_after", "attempt"),
    [
        (lambda delivery: delivery.extend(600), 600, 2),
        (lambda delivery: delivery.release(), 0, 1),
        (lambda delivery: delivery.nack(), 0, 2),
    ],
    ids=["extended", "released", "given back"],
)
def test_what_became_of_a_delivery_before_a_failover_holds_after_it(
    folder: Home, act: Callable[[Delivery], None], free_after: float, attempt: int
) -> None:
    clock = penstock.ManualClock()
    mail = folder.open(clock=clock).queue("mail")
    mail.configure(lease=60)
    mail.push({"n": 1})
    taken = mail.take()
    assert taken is not None
    act(taken)

    again = folder.open(clock=clock, takeover=True).queue("mail")
    if free_after:
        clock.advance(free_after - 1)
        assert again.take() is None
        clock.advance(2)
    found = again.take()
    assert found is not None and found.attempt == attempt


def test_a_message_that_kills_every_writer_becomes_a_dead_letter(folder: Home) -> None:
    clock = penstock.ManualClock()
    mail = folder.open(clock=clock).queue("mail")
    mail.configure(lease=60, max_attempts=3, dead_letter="dead")
    mail.push({"poison": True})
    attempts = []
    for _ in range(3):
        mail = folder.open(clock=clock, takeover=True).queue("mail")  # the one before is not closed: it was killed
        taken = mail.take()
        assert taken is not None
        attempts.append(taken.attempt)
        clock.advance(61)
    last = folder.open(clock=clock, takeover=True)
    assert last.queue("mail").take() is None and attempts == [1, 2, 3]
    buried = last.queue("dead").take()
    assert buried is not None and buried.payload == {"poison": True}


def test_a_writer_that_was_cut_off_hands_out_no_message(behind: Home, proxy: StoreProxy, emulator: Emulator) -> None:
    first = behind.open(lease=1.0)
    mail = first.queue("mail")
    mail.push_many([{"n": number} for number in range(3)])
    first._engine._timeout = 0.5  # not before: a busy machine may take longer to open it
    proxy.cut()
    with penstock.open(behind.url, store_options=emulator.options, lease=30, takeover=True) as second:
        with pytest.raises(StorageError):
            mail.take()
        taken = second.queue("mail").take_many(3)
        assert [delivery.payload["n"] for delivery in taken] == [0, 1, 2]
        with pytest.raises((StorageError, Fenced)):
            mail.take()
        proxy.heal()
        first._engine._timeout = DEADLINE
        with pytest.raises(Fenced):
            eventually(lambda: insist(mail.take))
        assert second.queue("mail").ack_many(taken) == 3


def test_a_take_whose_outcome_was_unknown_costs_its_message_no_attempt(behind: Home, proxy: StoreProxy) -> None:
    """Nobody was told of it: what it took is given back when the store answers again."""
    journal = behind.open(lease=30)
    mail = journal.queue("mail")
    mail.configure(lease=3600)
    mail.push({"n": 1})
    journal._engine._timeout = 0.5  # not before: a busy machine may take longer to open it
    proxy.refuse = lambda method, path: method == "PUT" and "/wal/" in path
    with pytest.raises(OutcomeUnknown):
        mail.take()
    proxy.heal()
    journal._engine._timeout = DEADLINE
    found = eventually(lambda: insist(mail.take))
    assert found is not None and found.attempt == 1


def test_a_take_is_one_put_and_one_that_finds_nothing_is_none(emulator: Emulator) -> None:
    with Home(f"{emulator.bucket()}/shop", emulator.options).open() as journal:
        mail = journal.queue("mail")
        mail.push_many([{"n": number} for number in range(110)])

        def puts(take: Callable[[], object]) -> int:
            before = journal.describe().requests["log"]["put"]
            for _ in range(10):
                take()
            return journal.describe().requests["log"]["put"] - before

        assert 10 <= puts(mail.take) <= 12  # a commit that nobody waits for may have one of its own
        assert 10 <= puts(lambda: mail.take_many(10)) <= 12
        assert puts(mail.take) <= 2
