"""The suite langgraph-checkpoint-conformance 0.0.2 on our checkpointer: every capability, no case left out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from operator import add
from pathlib import Path
from typing import Annotated, TypedDict

import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

import penstock
from penstock.integrations.langgraph import PenstockSaver
from server.process import ServerProcess

CASES = {
    "put": 17,
    "put_writes": 10,
    "get_tuple": 10,
    "list": 16,
    "delete_thread": 5,
    "delete_for_runs": 7,
    "copy_thread": 8,
    "prune": 8,
}
"""By capability, how many cases there are."""


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[penstock.Journal]:
    with penstock.open(tmp_path / "agents.db") as opened:
        yield opened


@pytest.mark.parametrize("capability", CASES)
def test_the_cases_of_a_capability_pass(journal: penstock.Journal, capability: str) -> None:
    @checkpointer_test(name="PenstockSaver")
    async def saver() -> AsyncIterator[PenstockSaver]:
        yield PenstockSaver(journal)

    report = asyncio.run(validate(saver, capabilities={capability}))
    result = report.results[capability]
    assert result.failures == []
    assert result.tests_passed == CASES[capability]


class Talk(TypedDict):
    said: Annotated[list[str], add]


def graph(saver: PenstockSaver):
    def ask(state: Talk) -> Talk:
        return {"said": [interrupt("who?")]}

    builder = StateGraph(Talk)
    builder.add_node("ask", ask)
    builder.add_edge(START, "ask")
    builder.add_edge("ask", END)
    return builder.compile(checkpointer=saver)


def test_a_graph_that_waits_goes_on_after_reopening(tmp_path: Path) -> None:
    place = {"configurable": {"thread_id": "talk/1"}}
    with penstock.open(tmp_path / "agents.db") as journal:
        assert "__interrupt__" in graph(PenstockSaver(journal)).invoke({"said": ["hello"]}, place)
    with penstock.open(tmp_path / "agents.db") as journal:
        resumed = graph(PenstockSaver(journal))
        assert resumed.invoke(Command(resume="ada"), place) == {"said": ["hello", "ada"]}
        assert next(resumed.get_state_history(place)).values == {"said": ["hello", "ada"]}
        assert resumed.get_state({"configurable": {"thread_id": "talk"}}).values == {}


def put(saver: PenstockSaver, thread: str, namespace: str = "") -> dict:
    config = {"configurable": {"thread_id": thread, "checkpoint_ns": namespace}}
    return saver.put(config, empty_checkpoint(), {"run_id": "secret"}, {})


def test_long_names_are_kept_apart(journal: penstock.Journal) -> None:
    saver = PenstockSaver(journal)
    names = [(thread * 200, namespace * 500) for thread in "ab" for namespace in "cd"]
    for thread, namespace in names:
        put(saver, thread, namespace)
    for thread, namespace in names:
        (found,) = saver.list({"configurable": {"thread_id": thread, "checkpoint_ns": namespace}})
        assert found.config["configurable"]["thread_id"] == thread
        assert found.config["configurable"]["checkpoint_ns"] == namespace


def test_a_deleted_thread_leaves_the_disk(journal: penstock.Journal) -> None:
    saver = PenstockSaver(journal)
    saver.put_writes(put(saver, "private"), [("channel", "secret")], "task")
    saver.delete_thread("private")
    journal.topic("langgraph").compact_keys()
    assert [(event.kind, event.payload) for event in journal.topic("langgraph").read()] == [("deleted", b"")] * 2


def test_pruning_keeps_what_a_channel_of_changes_needs(journal: penstock.Journal) -> None:
    saver = PenstockSaver(journal)
    config: dict = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    for counters in ({}, {"said": (0, 0)}, {"said": (1, 1)}, {"said": (1, 2)}):
        config = saver.put(config, empty_checkpoint(), {"counters_since_delta_snapshot": counters}, {})
    thread: dict = {"configurable": {"thread_id": "t"}}
    kept = [one.config for one in saver.list(thread)][:3]
    saver.prune(["t"])
    assert [one.config for one in saver.list(thread)] == kept


def test_pruning_with_an_unknown_strategy_is_refused(journal: penstock.Journal) -> None:
    with pytest.raises(penstock.errors.ConfigError, match="not 'oldest'"):
        PenstockSaver(journal).prune(["t"], strategy="oldest")


def test_a_served_journal_keeps_checkpoints_too(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "agents.db") as server, penstock.open(server.url) as journal:
        saver = PenstockSaver(journal)
        config = put(saver, "t")
        saver.put_writes(config, [("channel", "value")], "task")
        found = saver.get_tuple(config)
        assert found is not None
        assert found.pending_writes == [("task", "channel", "value")]
        saver.delete_thread("t")
        assert list(saver.list(None)) == []
