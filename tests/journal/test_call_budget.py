"""How much of penstock's Python a call runs, as a multiple of what a commit to its engine runs.

A hot append takes a third of the time that one right after an fsync takes: the processor's caches are gone by then, and
what is slow is fetching code. So what counts is how many functions a commit touches.

Counted are the calls of Python functions that lie in the package (`call` events of `sys.setprofile`; functions written
in C are not counted), on a SQLite store, in the main thread, once everything is warm: the most frequent number of 25
tries, so that the commit that merges small blocks and the one that starts a thread do not count. The measure is the
least that a commit can call: the engine alone puts one row. A multiple leaves room to give the same work another
structure, and none for a quarter more work.
"""

from __future__ import annotations

import linecache
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import penstock
from penstock import Journal, Projection, on
from penstock.core.engine import base

PACKAGE = str(Path(penstock.__file__).parent)
TRIES = 25


class Balance(Projection):
    amount: int = 0

    @on("deposited")
    def add(self, payload: Any) -> None:
        self.amount += payload["amount"]


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Journal]:
    # Where a program uses OpenTelemetry, an append asks it for a span: another test may have imported it.
    monkeypatch.delitem(sys.modules, "opentelemetry.trace", raising=False)
    # A store whose folder was made just now is looked at more closely.
    monkeypatch.setattr(base, "QUIET_NS", -1 << 62)
    with penstock.open(f"sqlite:{tmp_path / 'store.db'}", durability="process") as opened:
        yield opened


def calls_of(work: Callable[[], Any]) -> list[str]:
    """The functions of the package that some work calls, in order, as module:name."""
    called: list[str] = []

    def note(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE):
            called.append(f"{code.co_filename[len(PACKAGE) + 1 :]}:{code.co_qualname}")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return called


def usual_calls(work: Callable[[Any], Any], prepare: Callable[[], Any] = lambda: None) -> list[str]:
    """What `work` usually calls, given what `prepare` returned."""
    runs = []
    for _ in range(TRIES):
        given = prepare()
        runs.append(calls_of(lambda given=given: work(given)))  # type: ignore[misc]
    usual, _ = Counter(map(len, runs)).most_common(1)[0]
    return next(run for run in runs if len(run) == usual)


def check(journal: Any, called: list[str], multiple: float) -> None:
    """Asserts that some work calls at most so many times the functions that a commit of one row to the engine calls."""

    def commit_a_row() -> None:
        with journal._core.engine.write(sync=False) as tx:
            tx.put(b"\xff", b"")

    least = len(usual_calls(lambda _: commit_a_row()))
    found = len(called) / least
    listing = "\n".join(called)
    assert found <= multiple, f"{found:.1f} times a commit ({len(called)} calls), {multiple} are allowed:\n{listing}"


def test_append(journal: Journal) -> None:
    topic = journal.topic("t")
    topic.append("k", {"a": 1})
    check(journal, usual_calls(lambda _: topic.append("k", {"a": 1})), 5)


def test_push(journal: Journal) -> None:
    queue = journal.queue("q")
    queue.push({"a": 1})
    check(journal, usual_calls(lambda _: queue.push({"a": 1})), 6)


def test_take(journal: Journal) -> None:
    """From a backlog: the block that holds the message has been read before."""
    queue = journal.queue("q")
    queue.push_many(range(2 * TRIES))
    taken = [queue.take()]
    check(journal, usual_calls(lambda _: taken.append(queue.take())), 6)
    assert None not in taken


def test_take_of_what_was_just_pushed(journal: Journal) -> None:
    queue = journal.queue("q")
    taken = []
    check(journal, usual_calls(lambda _: taken.append(queue.take()), lambda: queue.push({"a": 1})), 7.5)
    assert None not in taken


def test_ack(journal: Journal) -> None:
    queue = journal.queue("q")
    queue.push_many(range(2 * TRIES))
    check(journal, usual_calls(lambda delivery: delivery.ack(), queue.take), 6)
    assert queue.stats().in_flight == 0


def test_append_with_an_expectation(journal: Journal) -> None:
    topic = journal.topic("t")
    newest = [topic.append("deposited", {"amount": 1}, key="known", expect=0).seq]

    def work(_: object) -> None:
        newest.append(topic.append("deposited", {"amount": 1}, key="known", expect=newest[-1]).seq)

    check(journal, usual_calls(work), 8)


def test_append_with_an_expectation_about_a_new_entity(journal: Journal) -> None:
    topic, number = journal.topic("t"), count()
    topic.append("deposited", {"amount": 1}, key="first", expect=0)
    check(journal, usual_calls(lambda _: topic.append("k", {"a": 1}, key=f"new {next(number)}", expect=0)), 11.5)


def test_append_with_an_expectation_about_an_entity_in_a_run(journal: Journal) -> None:
    topic, number = journal.topic("t"), count()
    for entity in range(2 * TRIES):
        topic.append("deposited", {"amount": 1}, key=f"old {entity}")
    journal.maintain()
    topic.append("k", key="other", expect=0)

    def work(_: object) -> None:
        entity = next(number)
        topic.append("k", {"a": 1}, key=f"old {entity}", expect=entity + 1)

    check(journal, usual_calls(work), 15)


def test_project_with_one_new_event(journal: Journal) -> None:
    topic = journal.topic("t")
    topic.append("deposited", {"amount": 1}, key="k")
    topic.project(Balance, "k")

    def prepare() -> None:
        topic.append("deposited", {"amount": 1}, key="k")

    check(journal, usual_calls(lambda _: topic.project(Balance, "k"), prepare), 12.5)


def test_flow_control_that_is_not_used_is_not_called(journal: Journal) -> None:
    """Rates, lanes, breakers, windows: a queue without them runs none of their code when it pushes, takes and acks."""
    queue = journal.queue("q")
    queue.push_many(range(4 * TRIES))
    called = {
        "push": usual_calls(lambda _: queue.push(1)),
        "take": usual_calls(lambda _: queue.take()),
        "ack": usual_calls(lambda delivery: delivery.ack(), queue.take),
    }
    for calls in called.values():
        assert [one for one in calls if one.startswith("core/queue/flow.py")] == []
    limited = journal.queue("limited", rate="1000/s", breaker="5/m")
    limited.push_many(range(4 * TRIES))
    assert any(one.startswith("core/queue/flow.py") for one in usual_calls(lambda _: limited.take()))


def test_what_flow_control_costs_where_it_is_not_used(journal: Journal) -> None:
    """At most 3 % of the instructions that a take and an ack execute in this package ask whether it is used."""
    queue = journal.queue("q")
    queue.push_many(range(10))

    def take_and_ack() -> None:
        delivery = queue.take()
        assert delivery is not None
        delivery.ack()

    instructions_of(take_and_ack)  # newer Pythons trace instructions of code that was traced before
    executed = instructions_of(take_and_ack)
    of_queue = {place: count for place, count in executed.items() if place[0].startswith("core/queue/")}
    asking = {place: count for place, count in of_queue.items() if FLOW(place[2])}
    assert sum(executed.values()) > 500 and asking, "the words are found where the code asks"
    assert sum(asking.values()) <= 0.03 * sum(executed.values()), asking


FLOW = re.compile("rate|limit|breaker|fair|lane|debounce|throttle|max_in_flight|paused|flow|shaped").search


def instructions_of(work: Callable[[], Any]) -> Counter[tuple[str, int, str]]:
    """How many instructions of the package some work executes: by file, line and the line's text."""
    executed: Counter[tuple[str, int]] = Counter()

    def count_up(frame: FrameType, event: str, argument: object) -> Any:
        if event == "opcode" and frame.f_lineno:
            executed[frame.f_code.co_filename, frame.f_lineno] += 1
        return count_up

    def enter(frame: FrameType, event: str, argument: object) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        frame.f_trace_opcodes = True
        return count_up

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        work()
    finally:
        sys.settrace(before)
    return Counter(
        {(file[len(PACKAGE) + 1 :], line, linecache.getline(file, line)): n for (file, line), n in executed.items()}
    )
