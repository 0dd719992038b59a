"""Declared event types in queues: they keep their kind and version, and come back as values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import pytest
from journals import eventually

import penstock
from penstock import Delivery, Draft, Journal, ManualClock
from penstock.core.schema import forget
from penstock.errors import ConfigError


class MailWanted(msgspec.Struct):
    to: str
    subject: str = "hello"


@dataclass
class MailSent:
    to: str


@pytest.fixture(autouse=True)
def declared() -> Iterator[None]:
    penstock.upcast("mail.wanted", version=1)(lambda payload: {**payload, "subject": "upcast"})
    penstock.event("mail.wanted", version=2)(MailWanted)
    penstock.event("mail.sent")(MailSent)
    yield
    forget("mail.wanted")
    forget("mail.sent")


def test_a_pushed_value_keeps_its_kind_and_comes_back(journal: Journal) -> None:
    queue = journal.queue("mail")
    queue.push(MailWanted("ada"))
    queue.push(MailWanted("bob"), key="bob", headers={"tenant": "a"}, kind="mail.wanted")
    queue.submit(MailSent("eve")).result()
    queue.push({"to": "old"}, kind="mail.wanted")
    first, second, third, old = queue.take_many(4)
    assert [one.kind for one in (first, second, third)] == ["mail.wanted", "mail.wanted", "mail.sent"]
    assert first.as_(MailWanted) == MailWanted("ada") and first.payload == {"to": "ada", "subject": "hello"}
    assert second.as_(MailWanted).to == "bob" and second.headers["tenant"] == "a"
    assert third.as_(MailSent) == MailSent("eve")
    assert old.as_(MailWanted) == MailWanted("old", "upcast"), "version 1 passes through the upcast, version 2 does not"


def test_several_values_may_be_of_several_types(journal: Journal) -> None:
    queue = journal.queue("mail", priority=True)
    queue.push_many([MailWanted("ada"), {"plain": 1}, MailSent("ada"), Draft("draft", 2)])
    queue.push_many([MailWanted("bob"), MailSent("bob")], priority=5)
    kinds = [one.kind for one in queue.take_many(10)]
    assert kinds == ["mail.wanted", "mail.sent", "mail.wanted", "message", "mail.sent", "draft"]


def test_another_kind_than_the_declared_one_is_refused(journal: Journal) -> None:
    queue = journal.queue("mail")
    for push in (queue.push, queue.submit):
        with pytest.raises(ConfigError, match=r"MailSent is declared as 'mail.sent'"):
            push(MailSent("ada"), kind="mail.lost")
    with pytest.raises(ConfigError, match="declared as"):
        queue.push_many([MailSent("ada")], kind="mail.lost")
    assert len(queue) == 0


def test_values_come_through_schedules_workers_and_dead_letters(journal: Journal, clock: ManualClock) -> None:
    queue = journal.queue("mail", max_attempts=1, dead_letter="grave")
    queue.every(60, MailWanted("ada"), name="hourly")
    clock.advance(61)
    failing: list[MailWanted] = []

    def handle(delivery: Delivery) -> None:
        failing.append(delivery.as_(MailWanted))
        raise ValueError

    with queue.worker(handle):
        eventually(lambda: len(journal.queue("grave")) == 1)
    (letter,) = journal.queue("grave").take_many(2)
    assert failing == [letter.as_(MailWanted)] == [MailWanted("ada")]
