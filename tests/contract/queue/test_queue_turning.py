"""Long lists of what was given up are read on from any place, at the cost of what is read."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from itertools import islice
from types import FrameType

from penstock import Journal
from penstock.core.observe.sample import FailedMessage
from penstock.core.queue.dead_letters import DeadLetterCursor
from penstock.core.queue.inspect import dead_letters, failures


def give_up(journal: Journal, name: str, count: int, dead_letter: str | None) -> None:
    queue = journal.queue(name, max_attempts=1, dead_letter=dead_letter)
    queue.push_many([{"n": n} for n in range(count)])
    for delivery in queue.take_many(count):
        delivery.nack(error="no")


def test_dead_letters_go_on_behind_any_of_them(journal: Journal) -> None:
    graves = journal.queue("graves", max_attempts=1, dead_letter="vault")
    give_up(journal, "mails", 12, "graves")
    give_up(journal, "others", 3, "graves")
    give_up(journal, "mails", 12, "graves")
    graves.take_many(2, lease=3600)  # held, and still letters
    given_up = graves.take()
    assert given_up is not None
    given_up.nack(error="really not")
    for name in ("mails", "graves", "vault"):
        queue = journal.queue(name)
        queue.redrive(where=lambda event: event.payload["n"] == 7, limit=1)
        whole = [DeadLetterCursor.of(one.event) for one in dead_letters(queue._backend)]
        assert whole == [DeadLetterCursor.of(one.event) for one in queue.dead_letters()] and len(whole) == len(
            set(whole)
        )
        for at, place in enumerate(whole):
            read = DeadLetterCursor.read(str(place))
            assert (
                read == place
                and [DeadLetterCursor.of(one.event) for one in dead_letters(queue._backend, read)] == whole[at + 1 :]
            )
    both = {one.event.topic for one in dead_letters(graves._backend)}
    assert both == {"graves", "vault"}, "its own, and those it gave up itself"


def test_failed_messages_go_on_behind_any_position(journal: Journal) -> None:
    give_up(journal, "mails", 20, None)
    queue = journal.queue("mails")
    queue.redrive(where=lambda event: event.payload["n"] in (4, 5), limit=2)
    whole = [one.event.seq for one in failures(queue._backend)]
    assert len(whole) == 18
    for after in range(22):
        assert [one.event.seq for one in failures(queue._backend, after=after)] == [seq for seq in whole if seq > after]


def calls(read: Callable[[], Iterable[FailedMessage]]) -> int:
    """How many functions are called for the first ten of a list."""
    count = 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        assert len(list(islice(read(), 10))) == 10
    finally:
        sys.setprofile(None)
    return count


def test_the_last_page_costs_what_the_first_costs(journal: Journal) -> None:
    give_up(journal, "mails", 2_000, "graves")
    give_up(journal, "jobs", 2_000, None)
    mails, jobs = journal.queue("mails")._backend, journal.queue("jobs")._backend
    for read in (
        lambda after: dead_letters(mails, DeadLetterCursor("graves", after)),
        lambda after: failures(jobs, after=after),
    ):
        first, last = calls(lambda read=read: read(0)), calls(lambda read=read: read(1_990))
        assert last < 1.5 * first, "what lies before a page is not looked at"
