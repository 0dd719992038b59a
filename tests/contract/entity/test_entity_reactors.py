"""Reactors: the handler's drafts are appended with the triggering event as cause, each input exactly once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from journals import Place, eventually, on, only, payloads

from penstock import Draft, Event, Journal, Topic
from penstock.errors import ConfigError, Denied, InvalidName

Reopen = Callable[[Journal], Journal]


def echo(event: Event) -> Draft | None:
    return Draft("echo", event.payload, topic="echoes") if event.kind == "in" else None


def drain(topic: Topic, consumer: str, handler: Callable[[Event], Any], **options: Any) -> None:
    """Runs a reactor until it has seen everything."""
    with topic.react(consumer, handler, **options):
        eventually(lambda: topic.cursor(consumer) == topic.latest, "the reactor catches up")


def test_each_event_is_reacted_to_once_with_itself_as_cause(journal: Journal, topic: Topic, reopen: Reopen) -> None:
    topic.append_many([Draft("in", number) for number in range(100)])
    drain(topic, "echo", echo, batch=7)
    topic.append("in", 100)
    topic.append("other")
    drain(topic, "echo", echo)
    journal = reopen(journal)
    drain(journal.topic("orders"), "echo", echo)
    echoes = list(journal.topic("echoes").read())
    assert payloads(echoes) == list(range(101))
    for event in echoes:
        assert [one.payload for one in journal.topic("echoes").ancestors(event)] == [event.payload, event.payload]


def test_a_handler_may_return_several_drafts_for_several_topics(journal: Journal, topic: Topic) -> None:
    def handler(event: Event) -> Any:
        yield Draft("a", event.payload, topic="a", key="k")
        yield Draft("b", event.payload, topic="b", cause=0)
        yield Draft("c", event.payload, topic="a", cause="outside", correlation="mine")

    topic.append_many([Draft("in", number) for number in range(3)])
    drain(topic, "split", handler)
    first = [event for event in journal.topic("a").read() if event.kind == "a"]
    assert payloads(first) == [0, 1, 2]
    assert [event.causation_id for event in journal.topic("b").read()] == [event.id for event in first]
    other = [event for event in journal.topic("a").read() if event.kind == "c"]
    assert {(event.causation_id, event.correlation_id) for event in other} == {("outside", "mine")}


@on("memory", "sqlite")
def test_a_topic_made_anew_while_a_reactor_works_is_reacted_to_from_its_beginning(
    journal: Journal, topic: Topic
) -> None:
    def handler(event: Event) -> Draft:
        if event.payload == 1:
            journal.drop_topic("orders", force=True)
            topic.append_many([Draft("in", number) for number in range(10, 13)])
        return Draft("echo", event.payload, topic="echoes")

    topic.append_many([Draft("in", number) for number in range(3)])
    drain(topic, "echo", handler)
    assert payloads(journal.topic("echoes").read()) == [10, 11, 12]


def test_drafts_without_a_topic_go_to_the_reactors_own(topic: Topic) -> None:
    topic.append("in", 3)
    drain(topic, "count", lambda event: Draft("in", event.payload - 1) if event.payload else None)
    assert payloads(topic.read()) == [3, 2, 1, 0]


def test_an_asynchronous_handler_is_awaited(journal: Journal, topic: Topic) -> None:
    async def handler(event: Event) -> list[Draft]:
        return [Draft("echo", event.payload, topic="echoes")]

    topic.append_many([Draft("in", number) for number in range(5)])
    drain(topic, "echo", handler)
    assert payloads(journal.topic("echoes").read()) == list(range(5))


def test_a_failing_handler_keeps_what_came_before_and_is_named(journal: Journal, topic: Topic) -> None:
    def handler(event: Event) -> Draft:
        if event.payload == 3:
            raise KeyError("three")
        return Draft("echo", event.payload, topic="echoes")

    topic.append_many([Draft("in", number) for number in range(6)])
    reactor = topic.react("echo", handler, restarts=0)
    with pytest.raises(KeyError) as failure:
        reactor.run()
    assert "'orders:echo'" in failure.value.__notes__[0] and "event 4" in failure.value.__notes__[0]
    assert payloads(journal.topic("echoes").read()) == [0, 1, 2] and topic.cursor("echo") == 3


def test_a_refused_reaction_stops_at_its_event(journal: Journal, topic: Topic) -> None:
    def no_fours(draft: Draft) -> None:
        if draft.payload == 4:
            raise Denied("four")

    journal.topic("echoes").gate(no_fours)
    topic.append_many([Draft("in", number) for number in range(6)])
    with pytest.raises(Denied):
        topic.react("echo", echo, restarts=0).run()
    assert payloads(journal.topic("echoes").read()) == [0, 1, 2, 3] and topic.cursor("echo") == 4
    journal.topic("echoes").ungate(no_fours)
    drain(topic, "echo", echo)
    assert payloads(journal.topic("echoes").read()) == list(range(6))


def test_a_conflict_is_met_by_reacting_again(journal: Journal, topic: Topic) -> None:
    counters = journal.topic("counters")
    tries: list[int] = []

    def handler(event: Event) -> Draft:
        generation = counters.position_of("c")
        if not tries:
            counters.append("count", "somebody else", key="c")
        tries.append(event.seq)
        return Draft("count", event.payload, topic="counters", key="c", expect=generation)

    topic.append("in", 1)
    drain(topic, "count", handler)
    assert tries == [1, 1] and payloads(counters.read(key="c")) == ["somebody else", 1]


@on("memory", "sqlite")
def test_two_reactors_of_one_name_react_once(
    journal: Journal, topic: Topic, in_threads: Callable[..., threading.Thread]
) -> None:
    topic.append_many([Draft("in", number) for number in range(200)])
    one, two = (topic.react("echo", echo, batch=5).start() for _ in range(2))
    eventually(lambda: topic.cursor("echo") == 200)
    one.stop()
    two.stop()
    assert payloads(journal.topic("echoes").read()) == list(range(200))


@only(second_open=True)
def test_reactors_of_two_journals_react_once(place: Place, journal: Journal, topic: Topic) -> None:
    other = place.open(durability="process")
    topic.append_many([Draft("in", number) for number in range(100)])
    with topic.react("echo", echo, batch=3), other.topic("orders").react("echo", echo, batch=3):
        eventually(lambda: topic.cursor("echo") == 100)
    assert payloads(journal.topic("echoes").read()) == list(range(100))


def test_two_names_react_independently(journal: Journal, topic: Topic) -> None:
    topic.append("in", 1)
    drain(topic, "one", echo)
    drain(topic, "two", echo)
    assert payloads(journal.topic("echoes").read()) == [1, 1]


@pytest.mark.parametrize("wrong", [3, "text", [Draft("fine"), 4], {"kind": "x"}])
def test_a_handler_returns_drafts(journal: Journal, topic: Topic, wrong: Any) -> None:
    topic.append("in", 1)
    with pytest.raises((ConfigError, TypeError)):
        topic.react("echo", lambda event: wrong, restarts=0).run()
    assert topic.latest == 1 and topic.cursor("echo") is None


def test_a_reactor_needs_a_name_and_topics_that_can_be(topic: Topic) -> None:
    with pytest.raises(InvalidName):
        topic.react(" ", echo)
    topic.append("in", 1)
    with pytest.raises(InvalidName):
        topic.react("echo", lambda event: Draft("x", topic="no/slash"), restarts=0).run()


class SeenEvent(threading.Event):
    """An event of which can be told that somebody has waited for it."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = 0

    def wait(self, timeout: float | None = None) -> bool:
        self.waits += 1
        return super().wait(timeout)


@on("sqlite")
def test_a_reactor_rests_while_a_fence_of_another_process_is_open(
    place: Place, journal: Any, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic.append("in", 1)
    run, tries = journal._core.writer.run, [0]

    def counted(request: Any) -> Any:
        tries[0] += 1
        return run(request)

    monkeypatch.setattr(journal._core.writer, "run", counted)
    fence = place.open(durability="process").fence()  # of another journal object, as one of another process is
    reactor: Any = topic.react("echo", lambda event: Draft("echo", event.payload, topic="echoes"))
    resting = reactor._stopping = SeenEvent()
    with reactor:
        eventually(lambda: resting.waits >= 2 or tries[0] > 100)
        assert tries[0] <= resting.waits + 1
        fence.commit()
        eventually(lambda: topic.cursor("echo") == 1)
    assert payloads(journal.topic("echoes").read()) == [1]


@on("memory", "sqlite")
@pytest.mark.parametrize("look", [1, 2, 3, 4])
def test_a_reactor_beside_another_of_its_name_and_a_compaction_goes_on(
    journal: Any, topic: Topic, monkeypatch: pytest.MonkeyPatch, look: int
) -> None:
    topic.append_many([Draft("in", number) for number in range(1, 11)])
    topic.commit("echo", 2)
    read, looks = journal._engine.read, [0]

    def reading() -> Any:
        if threading.current_thread() is main:
            looks[0] += 1
            if looks[0] == look:  # the other one has reacted, and what it is done with goes
                topic.commit("echo", 6)
                topic.compact(6)
        return read()

    def handler(event: Event) -> None:
        handled.append(event.seq)
        if event.seq == 10:
            reactor.stop()

    handled: list[int] = []
    main = threading.current_thread()
    reactor: Any = topic.react("echo", handler, batch=2, restarts=0)
    monkeypatch.setattr(journal._engine, "read", reading)
    reactor.run()
    monkeypatch.undo()
    assert topic.cursor("echo") == 10 and handled[-4:] == [7, 8, 9, 10]
