"""Gates see the rows of blocks that were made elsewhere, whether they are staged in steps or not."""

from __future__ import annotations

from typing import Any

import pytest
from bulk_steps import publish_in_steps

from penstock import Draft
from penstock.core.journal.blocks import Columns, RowOptions, Wire, build_wire, with_options
from penstock.core.journal.bulk import PreparedPiece, stage, staged_batches
from penstock.core.journal.writer import WriteRequest
from penstock.errors import Denied, StorageError
from penstock.transfer.publishing import Blocks, BulkCommit, publish_blocks, publish_staged

BATCH = b"0123456789abcdef"


@pytest.fixture(autouse=True, params=["at once", "in steps"])
def steps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "in steps":
        publish_in_steps(monkeypatch)


def only_positive(draft: Draft) -> None:
    if draft.payload["n"] < 0:
        raise Denied("n must be positive")


def wire(*numbers: int, kind: str = "made", **options: list[Any]) -> Wire:
    columns = Columns([kind] * len(numbers), [b'{"n":%d}' % n for n in numbers], key=[f"k{n}" for n in numbers])
    return with_options(build_wire(columns, 0, 0, 0), RowOptions(**options))


def write(journal: Any, *wires: Wire, topic: str = "orders", mark: str | None = None, queue: str | None = None) -> bool:
    count = sum(one.count for one in wires)
    return publish_blocks(journal, Blocks(((topic, one) for one in wires), 1_000, count, True), mark, 1, queue)


def numbers(journal: Any, topic: str = "orders") -> list[int]:
    return [event.payload["n"] for event in journal.topic(topic).read()]


def staged(journal: Any) -> int:
    with journal._engine.read() as snap:
        return len(list(staged_batches(snap)))


def test_a_refused_row_keeps_the_whole_write_out_and_is_named(journal: Any) -> None:
    journal.topic("orders").gate(only_positive, name="rules:positive", record="refusals")
    with pytest.raises(Denied) as denied:
        write(journal, wire(0, 1), wire(2, -3, 4))
    said = "gate rules:positive of topic 'orders' refused: n must be positive"
    assert str(denied.value) == f"{said} (a row of kind 'made' with key 'k-3': {{\"n\":-3}})"
    assert numbers(journal) == [] and staged(journal) == 0
    journal.flush()
    assert [one.payload["gate"] for one in journal.topic("refusals").read()] == ["rules:positive"]
    write(journal, wire(0, 1), wire(2))
    assert numbers(journal) == [0, 1, 2]


def test_a_gate_sees_kinds_of_its_own_and_topics_of_its_own(journal: Any) -> None:
    journal.topic("orders").gate(only_positive, kind="made")
    write(journal, wire(-1, kind="undone"), wire(1))
    write(journal, wire(-2), topic="others")
    assert (numbers(journal), numbers(journal, "others")) == ([-1, 1], [-2])


def test_what_was_written_before_is_not_judged_again(journal: Any) -> None:
    assert write(journal, wire(-1), mark="spark:query")
    journal.topic("orders").gate(only_positive)
    assert not write(journal, wire(-1), mark="spark:query"), "the batch's mark is asked before the gate"
    assert numbers(journal) == [-1] and staged(journal) == 0


def test_a_gate_that_fails_refuses_and_cannot_spoil_a_row(journal: Any) -> None:
    seen: list[Draft] = []

    def clumsy(draft: Draft) -> None:
        seen.append(draft)
        draft.payload["n"] = 99
        if len(seen) == 3:
            raise KeyError("price")

    journal.topic("jobs").gate(clumsy)
    journal.queue("jobs")
    write(journal, wire(0, 1, dedup=["a", None], max_attempts=[5, None]), topic="jobs", queue="jobs")
    assert [(draft.dedup, draft.key) for draft in seen] == [("a", "k0"), (None, "k1")]
    with pytest.raises(Denied, match=r"gate .*clumsy of topic 'jobs' failed: KeyError\('price'\)"):
        write(journal, wire(2), topic="jobs", queue="jobs")
    assert numbers(journal, "jobs") == [0, 1]


def test_what_is_exchanged_while_gates_are_asked_is_not_published(journal: Any) -> None:
    def put(*numbers: int) -> None:
        made = PreparedPiece([("orders", wire(*numbers))])
        journal._core.writer.run(WriteRequest(lambda commit: stage(commit, BATCH, 0, made)))

    def slow(draft: Draft) -> None:
        if draft.payload["n"] == 1:
            put(-1)

    put(1)
    journal.topic("orders").gate(slow)
    with pytest.raises(StorageError, match="changed while gates were asked"):
        publish_staged(journal, BulkCommit([BATCH]))
    assert numbers(journal) == []
