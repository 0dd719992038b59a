"""An exclusive fence of one process keeps what others append or publish out, for as long as its process lives."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from journals import DEADLINE, Place, eventually

import penstock
from penstock import Draft
from penstock.errors import FenceActive
from penstock.journal import keys
from penstock.journal.blocks import Columns, build_wire
from penstock.transfer.publishing import Blocks, publish_blocks

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


@pytest.fixture
def shared(journal: Any) -> Any:
    if not journal._engine.shared:
        pytest.skip("one process writes this engine's stores")
    return journal


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
def test_a_batch_waits_until_another_process_has_ended_its_fence(shared: Any, place: Place, end: str) -> None:
    with holder(place) as process:
        with pytest.raises(FenceActive, match=f"an exclusive fence of process {process.pid} is open"):
            publish(shared, 1)
        assert numbers(shared) == []
        tell(process, end)
        assert rows(shared) == 0
        publish(shared, 1)
        assert numbers(shared) == ([0, 1] if end == "commit" else [1])


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
def test_nothing_of_another_process_becomes_visible_while_a_fence_is_open(shared: Any, place: Place, how: str) -> None:
    """Also of one that has appended all along, and knows where its topics end."""
    shared.topic("orders").append("made", {"n": -1})
    append = APPENDS[how]
    with holder(place) as process:
        for _ in range(2):
            with pytest.raises(FenceActive, match=f"an exclusive fence of process {process.pid} is open"):
                append(shared)
        assert numbers(shared) == [-1]
        tell(process, "commit")
        append(shared)
    assert numbers(shared) == [-1, 0] + [1] * (how != "fence")


def test_a_killed_process_keeps_nobody_from_appending(shared: Any, place: Place) -> None:
    shared.topic("orders").append("made", {"n": -1})
    with holder(place) as process:
        with pytest.raises(FenceActive):
            shared.topic("orders").append("made", {"n": 1})
        process.kill()
        process.wait()
        shared.topic("orders").append("made", {"n": 1})  # though nobody has committed since
    assert numbers(shared) == [-1, 1] and rows(shared) == 0


def test_what_appends_nothing_goes_on_beside_another_processs_fence(shared: Any, place: Place) -> None:
    queue = shared.queue("jobs")
    queue.push(1)
    with holder(place):
        delivery = queue.take()
        assert delivery is not None
        delivery.ack()
        assert len(queue) == 0 and numbers(shared) == []


def test_looking_for_other_processes_fences_costs_nothing_where_nobody_else_commits(shared: Any) -> None:
    asked: list[None] = []
    catalog = shared._core.writer.catalog
    find = catalog.find_fence
    catalog.find_fence = lambda tx: (asked.append(None), find(tx))[1]
    topic = shared.topic("orders")
    topic.append("made", {"n": 1})
    before = len(asked)
    for n in range(10):
        topic.append("made", {"n": n})
    assert len(asked) == before


def test_a_fence_of_a_process_that_was_killed_keeps_nobody_out(shared: Any, place: Place) -> None:
    with holder(place) as process:
        with pytest.raises(FenceActive):
            publish(shared, 1)
        process.kill()
        process.wait()
        assert rows(shared) == 1
        publish(shared, 1)
        assert numbers(shared) == [1] and rows(shared) == 0


def test_what_was_published_before_is_known_before_a_fence_is(shared: Any, place: Place) -> None:
    assert publish(shared, 1, "spark:query")
    with holder(place):
        assert not publish(shared, 1, "spark:query")


def test_a_fence_of_another_journal_of_this_process_binds_too(shared: Any, place: Place) -> None:
    with penstock.open(place.url) as other:
        fence = other.fence()
        with pytest.raises(FenceActive):
            publish(shared, 1)
        fence.cancel()
        publish(shared, 1)  # at once: this process knows that the fence has ended
        eventually(lambda: rows(shared) == 0)
        with other.fence(exclusive=False) as open_to_others:
            open_to_others.submit("orders", "made", {"n": 3})
            publish(shared, 2)
    assert numbers(shared) == [1, 2, 3]


def test_a_copy_that_was_made_while_a_fence_was_open_is_not_fenced(shared: Any, place: Place, tmp_path: Any) -> None:
    target = f"{place.url.partition(':')[0]}:{tmp_path / 'copy'}"
    with holder(place):
        shared.backup(tmp_path / "copy")
        with penstock.open(target) as copy:
            publish(copy, 1)
            assert numbers(copy) == [1] and rows(copy) == 0
