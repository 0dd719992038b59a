"""Commands about queues and topics that others drop, and make anew, while the command is under way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import penstock
from cli.commandline import Cli
from penstock.cli import topics
from penstock.local.backend import LocalJournal
from server.serving import serving


@pytest.fixture
def dropped(url: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Makes two queues, one of which another process drops just before the next command asks for it."""
    queue = LocalJournal.queue

    def make() -> None:
        with penstock.open(url) as journal:
            for name in ("emails", "reports"):
                queue(journal, name, max_attempts=7).push(1)  # type: ignore[arg-type]

    def drop_first(journal: LocalJournal, name: str, **given: Any) -> Any:
        if name == "emails":
            with penstock.open(url) as other:
                other.drop_topic("emails", force=True)
        return queue(journal, name, **given)

    monkeypatch.setattr(LocalJournal, "queue", drop_first)
    return make


@pytest.mark.parametrize(
    "words",
    [
        "purge emails --yes",
        "drop emails --yes",
        "take emails --settle ack",
        "pause emails",
        "redrive emails",
        "move emails reports",
    ],
)
def test_no_command_makes_a_queue_that_is_dropped_meanwhile(
    cli: Cli, url: str, dropped: Callable[[], None], words: str
) -> None:
    dropped()
    assert "there is no queue 'emails'" in cli(*words.split(), code=3).err
    with penstock.open(url) as journal:
        assert journal.queues() == journal.topics() == ["reports"]


def test_lists_go_on_without_a_queue_that_is_dropped_meanwhile(cli: Cli, dropped: Callable[[], None]) -> None:
    dropped()
    assert [one["queue"] for one in cli("queues", "--json").documents] == ["reports"]
    dropped()
    assert "no worker is there" in cli("workers").err


@pytest.mark.parametrize("served", [False, True])
def test_tail_goes_on_in_a_topic_made_anew(
    cli: Cli, orders: str, url: str, monkeypatch: pytest.MonkeyPatch, served: bool
) -> None:
    newest = topics._newest

    def made_anew(*given: Any) -> list[penstock.Event]:
        found = newest(*given)
        journal.drop_topic("orders")
        journal.topic("orders").append_many([penstock.Draft("made anew", number) for number in range(30)])
        return found

    monkeypatch.setattr(topics, "_newest", made_anew)
    with penstock.open(url) as journal, serving(journal) as server:
        words = ("--url", server.url) if served else ()
        said = cli("tail", "orders", "-f", "-n2", "--count", "5", "--json", *words)
    assert [event["seq"] for event in said.documents] == [9, 10, 11, 12, 13]


def test_tail_shows_what_comes_while_it_begins_once(
    cli: Cli, orders: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = topics._newest

    def with_more(*given: Any) -> list[penstock.Event]:
        with penstock.open(url) as journal:
            journal.topic("orders").append("placed", "meanwhile")
        return newest(*given)

    monkeypatch.setattr(topics, "_newest", with_more)
    said = cli("tail", "orders", "-f", "-n2", "--count", "3", "--json")
    assert [event["seq"] for event in said.documents] == [9, 10, 11]
