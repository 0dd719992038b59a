"""An exclusive fence of one process keeps what others append or publish out, for as long as its process lives."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from journals import DEADLINE, Place, eventually, only, payloads

import penstock
from penstock import Draft, Topic
from penstock.core.entity import fence as holders
from penstock.core.journal import keys
from penstock.core.journal.blocks import Columns, build_wire
from penstock.errors import Conflict, FenceActive, StorageError
from penstock.transfer.publishing import Blocks, publish_blocks

pytestmark = only(shared=True)
HOLDER = """
import sys, penstock
journal = penstock.open(sys.argv[1])
fence = journal.fence()
fence.submit("orders", "made", {"n": 0})
print("open", flush=True)
for line in sys.stdin:
    match line.strip():
        case "commit": fence.commit()
        case "cancel": fence.cancel(); journal.flush()
        case "drop": del fence; journal.flush()
        case "close": journal.close()
    print("done", flush=True)
"""


@contextmanager
def holder(place: Place) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", HOLDER, place.url]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "open\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def tell(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(f"{word}\n")
    process.stdin.flush()
    assert process.stdout.readline() == "done\n"


def publish(journal: Any, n: int, mark: str | None = None) -> bool:
    wire = build_wire(Columns(["made"], [b'{"n":%d}' % n]), 0, 0, 0)
    return publish_blocks(journal, Blocks([("orders", wire)], 100, 1, False), mark, 1)


def numbers(journal: Any) -> list[int]:
    return [event.payload["n"] for event in journal.topic("orders").read()]


def rows(journal: Any) -> int:
    with journal._engine.read() as snap:
        return len(list(snap.scan(keys.FENCE, keys.prefix_end(keys.FENCE))))


@pytest.mark.parametrize("end", ["commit", "cancel", "drop", "close"])
def test_a_batch_waits_until_another_process_has_ended_its_fence(journal: Any, place: Place, end: str) -> None:
    with holder(place) as process:
        with pytest.raises(FenceActive, match=f"an exclusive fence of process {process.pid} is open"):
            publish(journal, 1)
        assert numbers(journal) == []
        tell(process, end)
        assert rows(journal) == 0
        publish(journal, 1)
        assert numbers(journal) == ([0, 1] if end == "commit" else [1])


Append = Callable[[Any], object]
APPENDS: dict[str, Append] = {
    "append": lambda journal: journal.topic("orders").append("made", {"n": 1}),
    "append_many": lambda journal: journal.topic("orders").append_many([Draft("made", {"n": 1})]),
    "submit": lambda journal: journal.topic("orders").submit("made", {"n": 1}).result(DEADLINE),
    "push": lambda journal: journal.queue("orders").push({"n": 1}),
    "transaction": lambda journal: one_of_a_transaction(journal),
    "fence": lambda journal: journal.fence(),
    "outbox": lambda journal: one_of_an_outbox(journal),
}


def one_of_an_outbox(journal: Any) -> None:
    with journal.outbox() as outbox:
        outbox.stage("orders", "made", {"n": 1})


def one_of_a_transaction(journal: Any) -> None:
    with journal.transaction() as tx:
        tx.append("orders", "made", {"n": 1})


@pytest.mark.parametrize("how", APPENDS)
def test_nothing_of_another_process_becomes_visible_while_a_fence_is_open(journal: Any, place: Place, how: str) -> None:
    """Also of one that has appended all along, and knows where its topics end."""
    journal.topic("orders").append("made", {"n": -1})
    append = APPENDS[how]
    with holder(place) as process:
        for _ in range(2):
            with pytest.raises(FenceActive, match=f"an exclusive fence of process {process.pid} is open"):
                append(journal)
        assert numbers(journal) == [-1]
        tell(process, "commit")
        append(journal)
    assert numbers(journal) == [-1, 0] + [1] * (how != "fence")


def test_a_killed_process_keeps_nobody_from_appending(journal: Any, place: Place) -> None:
    journal.topic("orders").append("made", {"n": -1})
    with holder(place) as process:
        with pytest.raises(FenceActive):
            journal.topic("orders").append("made", {"n": 1})
        process.kill()
        process.wait()
        journal.topic("orders").append("made", {"n": 1})  # though nobody has committed since
    assert numbers(journal) == [-1, 1] and rows(journal) == 0


def test_what_appends_nothing_goes_on_beside_another_processs_fence(journal: Any, place: Place) -> None:
    queue = journal.queue("jobs")
    queue.push(1)
    with holder(place):
        delivery = queue.take()
        assert delivery is not None
        delivery.ack()
        assert len(queue) == 0 and numbers(journal) == []


def test_looking_for_other_processes_fences_costs_nothing_where_nobody_else_commits(journal: Any) -> None:
    asked: list[None] = []
    catalog = journal._core.writer.catalog
    find = catalog.find_fence
    catalog.find_fence = lambda tx: (asked.append(None), find(tx))[1]
    topic = journal.topic("orders")
    topic.append("made", {"n": 1})
    before = len(asked)
    for n in range(10):
        topic.append("made", {"n": n})
    assert len(asked) == before


def test_a_fence_of_a_process_that_was_killed_keeps_nobody_out(journal: Any, place: Place) -> None:
    with holder(place) as process:
        with pytest.raises(FenceActive):
            publish(journal, 1)
        process.kill()
        process.wait()
        assert rows(journal) == 1
        publish(journal, 1)
        assert numbers(journal) == [1] and rows(journal) == 0


def test_what_was_published_before_is_known_before_a_fence_is(journal: Any, place: Place) -> None:
    assert publish(journal, 1, "spark:query")
    with holder(place):
        assert not publish(journal, 1, "spark:query")


def test_a_fence_of_another_journal_of_this_process_binds_too(journal: Any, place: Place) -> None:
    with penstock.open(place.url) as other:
        fence = other.fence()
        with pytest.raises(FenceActive):
            publish(journal, 1)
        fence.cancel()
        publish(journal, 1)  # at once: this process knows that the fence has ended
        eventually(lambda: rows(journal) == 0)
        with other.fence(exclusive=False) as open_to_others:
            open_to_others.submit("orders", "made", {"n": 3})
            publish(journal, 2)
    assert numbers(journal) == [1, 2, 3]


def test_a_copy_that_was_made_while_a_fence_was_open_is_not_fenced(journal: Any, place: Place, tmp_path: Any) -> None:
    target = f"{place.url.partition(':')[0]}:{tmp_path / 'copy'}"
    with holder(place):
        journal.backup(tmp_path / "copy")
        with penstock.open(target) as copy:
            publish(copy, 1)
            assert numbers(copy) == [1] and rows(copy) == 0


def test_a_fence_whose_end_could_not_be_written_keeps_no_other_process_out(
    journal: Any, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic.append("placed", 1)
    fence = journal.fence()

    def full(*, sync: bool = True) -> Any:
        raise StorageError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(journal._engine, "write", full)
        fence.cancel()
        for _ in range(2):  # the first one after what the cancelling has handed in
            with pytest.raises(StorageError, match="no room"):
                topic.append("placed", 2)
    assert rows(journal) == 1  # other processes take it for open: its process is alive
    with pytest.raises(Conflict), journal.transaction() as tx:
        tx.append(topic, "placed", 2, key="k", expect=7)
    topic.append("placed", 2)
    assert rows(journal) == 0


def test_a_conflict_after_a_fence_of_a_dead_process_spoils_no_transaction(
    place: Place, journal: Any, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic.append("placed", 1)
    other: Any = place.open(durability="process")
    fence = other.fence()
    with journal.transaction() as tx:
        monkeypatch.setattr(holders, "is_alive", lambda owner: False)  # its process ends without a word
        with pytest.raises(Conflict):
            tx.append(topic, "placed", 2, key="k", expect=7)
        tx.append(topic, "placed", 3)
    assert payloads(topic.read()) == [1, 3] and rows(journal) == 0
    fence.cancel()
