"""Erasing: what the law requires to be gone is gone from everywhere, and all else stays as it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from bulk_steps import publish_in_steps
from journals import Place, on, payloads, seen, seqs

import penstock
from byte_search import places_with
from penstock import Draft, Event, InclusionProof, Journal, ManualClock, Projection, Topic, check_proof
from penstock import on as handles
from penstock.core.clock import from_ms
from penstock.core.journal.blocks import Columns, build_wire
from penstock.core.journal.sealed import sealing
from penstock.core.journal.sealed.sealing import seal_topic
from penstock.core.journal.sealed.tables import TableRequest
from penstock.core.journal.upkeep import erasing
from penstock.core.journal.writer import Writer
from penstock.core.local.backend import LocalJournal
from penstock.core.queue.inspect import open_view
from penstock.core.queue.queue import LocalQueue
from penstock.errors import ConfigError, ReplyFailed, StaleDelivery, UnknownTopic
from penstock.transfer.publishing import Blocks, publish_blocks
from queue_check import check_queue

Reopen = Callable[[Journal], Journal]
SECRET = "5ecre7-4f9a1c77e2"
"""In the key, the payload, the headers, the scope, the tags and the dedup key of what is erased."""


class Total(Projection):
    notes: list[Any] = []

    @handles("placed")
    def placed(self, event: Event) -> None:
        self.notes = [*self.notes, event.payload]


class Count(Projection):
    """Its handler fails on a payload of None."""

    total: int = 0
    events: int = 0

    @handles("placed")
    def placed(self, event: Event) -> None:
        self.total += event.payload["n"]
        self.events += 1


def fill(topic: Topic, count: int = 10) -> None:
    """Every fifth event is the customer's who asks to be forgotten."""
    for n in range(count):
        who = SECRET if n % 5 == 3 else f"customer-{n % 5}"
        topic.append(
            "placed",
            {"n": n, "email": f"{who}@example.com"},
            key=who,
            tags=(f"customer:{who}",),
            scope=who,
            headers={"who": who},
            dedup=f"{who}-{n}",
        )


def test_an_erased_event_keeps_its_place_and_says_nothing(topic: Topic, clock: ManualClock) -> None:
    fill(topic)
    before = topic.get(4)
    cause = topic.append("shipped", {"to": SECRET}, key=SECRET, cause=before)
    clock.advance(60)
    report = topic.erase(key=SECRET, by="ada")
    assert (report.events, report.dedup_keys) == (3, 2)
    event = topic.get(4)
    assert event is not None and before is not None
    kept = ("seq", "topic", "kind", "id", "occurred_at", "recorded_at", "correlation_id", "causation_id")
    assert [getattr(event, name) for name in kept] == [getattr(before, name) for name in kept]
    assert (event.payload, event.key, event.scope, event.tags, event.erased) == (None, None, None, (), True)
    assert event.headers == {"erased-at": from_ms(clock.now_ms()).isoformat(), "erased-by": "ada"}
    assert [one.seq for one in topic.ancestors(cause.id)] == [11, 4]
    assert [one.erased for one in topic.read()] == [seq in (4, 9, 11) for seq in range(1, 12)]


def test_nothing_finds_an_erased_event_by_what_it_said(journal: Journal, topic: Topic, reopen: Reopen) -> None:
    fill(topic)
    topic.append_many([Draft("placed", n, key=SECRET if n % 2 else "ada", scope=SECRET) for n in range(300)])
    topic.erase(key=SECRET)
    for _ in range(2):
        assert list(topic.read(key=SECRET)) == list(topic.read(tags=f"customer:{SECRET}")) == []
        assert seqs(topic.read(scope=SECRET)) == [seq for seq in range(11, 311) if seq % 2]
        assert topic.position_of(SECRET) == 0 and topic.position_of("ada") == 309
        assert SECRET not in topic.entities()
        journal.maintain()
        journal = reopen(journal)
        topic = journal.topic("orders")


def test_the_rest_of_a_block_stays_as_it_was(topic: Topic) -> None:
    fill(topic)
    topic.append_many([Draft("bulk", {"n": n}, key=f"k{n % 3}", tags=(f"t{n}",)) for n in range(200)])
    before = [event.as_dict() for event in topic.read()]
    topic.erase([4, 9, 100])
    after = [event.as_dict() for event in topic.read()]
    assert [one for one in after if one["seq"] not in (4, 9, 100)] == [
        one for one in before if one["seq"] not in (4, 9, 100)
    ]


def test_events_are_erased_by_position_key_kind_tag_or_condition(topic: Topic) -> None:
    topic.append_many([Draft(f"kind-{n % 3}", {"n": n}, key=f"k{n}", tags=(f"t{n % 4}",)) for n in range(12)])
    assert topic.erase([3, 3, 99]).events == 1
    assert topic.erase(key="k3").events == 1
    assert topic.erase(where="payload.n >= 11").events == 1
    assert topic.erase(tags="t1", kind="kind-2").events == 1
    assert [event.seq for event in topic.read() if event.erased] == [3, 4, 6, 12]
    assert topic.erase(tags="t1", kind="kind-2").events == 0


def test_a_second_erasure_finds_nothing_left(topic: Topic) -> None:
    fill(topic)
    topic.erase([4, 9], by="ada")
    before = [event.as_dict() for event in topic.read()]
    report = topic.erase([4, 9], by="bob")
    assert (report.events, report.blocks) == (0, 0)
    assert [event.as_dict() for event in topic.read()] == before


def test_a_forged_mark_does_not_keep_an_event_from_being_erased(topic: Topic) -> None:
    topic.append("placed", {"email": SECRET}, headers={"erased-at": "2020", "erased-by": "x"})
    assert topic.erase([1]).events == 1
    assert payloads(topic.read()) == [None]


def test_masking_blanks_fields_and_keeps_the_event(topic: Topic) -> None:
    nested = {"email": "a@b", "address": {"street": "s", "city": "c"}, "lines": [{"name": "x", "n": 1}, 7], "f": 1.50}
    topic.append("placed", nested, key="k", headers={"h": "1"})
    topic.append("placed", {"other": 1}, key="k")
    report = topic.mask(["email", "address.street", "lines.name", "absent.x"], key="k", by="ada")
    assert report.events == 1
    event = topic.get(1)
    assert event is not None and not event.erased
    assert event.payload == {
        "email": None,
        "address": {"street": None, "city": "c"},
        "lines": [{"name": None, "n": 1}, 7],
        "f": 1.5,
    }
    assert event.headers["masked-fields"] == "email, address.street, lines.name, absent.x"
    assert (event.headers["masked-by"], event.headers["h"]) == ("ada", "1")
    assert seqs(topic.read(key="k")) == [1, 2]
    assert topic.mask("email", key="k").events == 0
    assert topic.erase(key="k").events == 2


def test_bytes_are_not_masked_but_refused(topic: Topic) -> None:
    topic.append_many([Draft("k", {"a": 1}), Draft("k", b"\x00")])
    with pytest.raises(ConfigError, match=r"event 2 .* has bytes"):
        topic.mask(["a"], kind="k")
    assert payloads(topic.read()) == [{"a": 1}, b"\x00"]


def test_an_erasure_says_which_events_it_means(topic: Topic) -> None:
    with pytest.raises(ConfigError, match="say which events"):
        topic.erase()
    with pytest.raises(UnknownTopic, match="nothing of it can be erased"):
        topic.erase(key="k")
    with pytest.raises(ConfigError, match="fields"):
        topic.mask([], key="k")
    with pytest.raises(ConfigError, match="a field to mask"):
        topic.mask(["a..b"], key="k")


def test_states_that_folded_an_erased_event_are_folded_anew(topic: Topic, journal: Journal, reopen: Reopen) -> None:
    fill(topic, 40)
    topic.rebuild(Total)
    assert len(topic.project(Total, SECRET).notes) == 8  # type: ignore[union-attr]
    assert len(topic.project(Total).notes) == 40  # type: ignore[union-attr]
    report = topic.erase([4, 9])
    assert report.states >= 1
    for _ in range(2):
        assert [note["n"] for note in topic.project(Total, SECRET).notes] == [13, 18, 23, 28, 33, 38]  # type: ignore[union-attr]
        assert len(topic.project(Total).notes) == 38  # type: ignore[union-attr]
        journal = reopen(journal)
        topic = journal.topic("orders")


def test_no_handler_gets_an_erased_event(topic: Topic) -> None:
    fill(topic)
    topic.append_many([Draft("placed", {"n": n}) for n in range(10, 20)])
    before = topic.project(Count)
    topic.erase([4, 15])
    for _ in range(2):
        state = topic.project(Count)
        assert state is not None and before is not None
        assert (state.total, state.events) == (before.total - 3 - 14, 18)
        topic.rebuild(Count, whole=True)


def test_a_forgotten_dedup_key_lets_the_event_come_again(topic: Topic) -> None:
    fill(topic)
    topic.erase([4])
    assert topic.append("placed", 1, dedup=f"{SECRET}-3").duplicate is False
    assert topic.append("placed", 1, dedup=f"{SECRET}-8").duplicate is True


def test_expect_and_unless_speak_of_the_events_that_are_left(topic: Topic) -> None:
    fill(topic)
    topic.erase(key=SECRET)
    assert topic.append("placed", 1, key=SECRET, expect=0).seq == 11
    assert topic.append("placed", 1, key="customer-0", expect=6).seq == 12


def test_an_erasure_that_was_cut_off_goes_on_when_the_journal_is_opened(
    place: Place, journal: Journal, topic: Topic, reopen: Reopen, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(topic)

    def cut(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(erasing._Erasing, "_rewrite_files", cut)
        with pytest.raises(KeyboardInterrupt):
            topic.erase(key=SECRET)
    journal = reopen(journal)
    journal.maintain()
    assert what_is_left(place, journal) == set()
    assert journal.topic("orders").append("placed", 1, dedup=f"{SECRET}-3").duplicate is False


def test_messages_are_given_up_wherever_they_are_in_their_queue(journal: Journal, clock: ManualClock) -> None:
    jobs = journal.queue("jobs", dead_letter="jobs.dead", max_attempts=1)
    tickets = [jobs.push({"n": n}, key="a" if n % 2 else "b", headers={"n": str(n)}, reply=True) for n in range(6)]
    jobs.push({"n": 6}, delay=60)
    (held, other) = jobs.take_many(2)
    assert (held.seq, other.seq) == (1, 2)
    report = journal.topic("jobs").erase([1, 3, 4, 7])
    assert (report.events, report.messages) == (4, 4)
    with pytest.raises(StaleDelivery):
        held.ack()
    with pytest.raises(ReplyFailed):
        tickets[0].result(0)
    other.ack()
    taken = []
    while (delivery := jobs.take()) is not None:
        taken.append(delivery.seq)
        delivery.ack()
    assert taken == [5, 6]
    clock.advance(120)
    assert jobs.take() is None and len(jobs) == 0
    assert isinstance(jobs._backend, LocalQueue)
    with open_view(jobs._backend) as view:
        assert check_queue(view.snap, view.state) == []


def test_a_dead_letter_goes_when_its_message_is_gone_long_since(journal: Journal) -> None:
    jobs = journal.queue("jobs", dead_letter="jobs.dead", max_attempts=1)
    jobs.push({"who": SECRET}, key=SECRET, dedup=SECRET)
    jobs.push({"who": "other"}, key="other")
    for _ in range(2):
        delivery = jobs.take()
        assert delivery is not None
        delivery.nack(error=SECRET)
    journal.maintain()
    assert journal.topic("jobs").get(1) is None
    report = journal.topic("jobs").erase(key=SECRET)
    assert (report.events, report.copies, report.dedup_keys) == (0, 1, 1)
    assert payloads(journal.topic("jobs.dead").read()) == [None, {"who": "other"}]
    letter = journal.queue("jobs.dead").take()
    assert letter is not None and letter.payload == {"who": "other"}


@pytest.mark.parametrize("verified", [True, False])
def test_proofs_hold_and_that_of_an_erased_event_says_who_erased_it(
    topic: Topic, clock: ManualClock, verified: bool
) -> None:
    topic.configure(verified=verified)
    receipts = topic.append_many([Draft("placed", {"n": n, "email": SECRET}) for n in range(20)])
    root = topic.verify().root
    assert root is not None
    given = [topic.proof(receipt) for receipt in receipts]
    clock.advance(60)
    topic.erase([4], by="ada")
    topic.mask("email", [5, 6], by="bob")
    topic.erase([6], by="ada")
    for report in (topic.verify(), topic.verify()):
        assert report.ok and report.root is not None and report.root.hash == root.hash
    for seq, receipt in enumerate(receipts, 1):
        assert check_proof(given[seq - 1], root=root)
        proof = InclusionProof.from_json(topic.proof(receipt, root=root).to_json())
        report, checked = check_proof(proof, root=root), topic.check(receipt)
        assert report
        if seq in (4, 6):
            said = f"its contents were erased at {from_ms(clock.now_ms()).isoformat()} by ada"
            assert said in report.reason and SECRET.encode() not in proof.leaf
            assert not checked and said in checked.reason
            assert (proof.event["seq"], proof.event["id"]) == (seq, receipt.id)
        elif seq == 5:
            assert "fields of it (email) were blanked" in report.reason and not checked
        else:
            assert proof.erased is None and proof.event["seq"] == seq and checked
    forged = msgspec.structs.replace(topic.proof(4, root=root), seq=5)
    assert not check_proof(forged, root=root)


def test_an_erased_event_does_not_hide_one_that_was_tampered_with(topic: Topic) -> None:
    topic.configure(verified=True)
    topic.append_many([Draft("placed", {"n": n}) for n in range(9)])
    topic.erase([4])
    report = topic.verify()
    assert report and report.events == 9


def test_a_root_is_published_over_events_that_were_erased_before(topic: Topic) -> None:
    fill(topic)
    topic.erase([4])
    root = topic.verify().root
    assert root is not None
    assert all(check_proof(topic.proof(seq), root=root) for seq in range(1, 11))


@pytest.mark.parametrize("format", ["parquet", "delta", "iceberg"])
@on("sqlite")
def test_files_of_a_lake_and_its_table_have_nothing_of_it(place: Place, journal: Journal, format: Any) -> None:
    lake, topic = place.folder / "lake", journal.topic("orders")
    assert isinstance(journal, LocalJournal)
    fill(topic, 40)
    columns = TableRequest(format=format, columns="email STRING, n BIGINT")
    seal_topic(journal.backend.core, "orders", lake=str(lake), through=30, file_events=10, table=columns)
    before = [event.as_dict() for event in topic.read()]
    report = topic.erase(where=f"key == '{SECRET}' and payload.n < 20")
    assert (report.events, report.files, report.blocks) == (4, 2, 0)
    assert len([place for place in report.remaining if "older versions" in place]) == (format != "parquet")
    topic.mask("email", key=SECRET)
    journal.maintain()
    after = [event.as_dict() for event in topic.read()]
    assert [one for one in after if one["key"] != SECRET and one["payload"]] == [
        one for one in before if one["key"] != SECRET
    ]
    assert [one["payload"]["email"] for one in after if one["key"] == SECRET] == [None] * 4
    assert len(list((lake / "orders").rglob("*.parquet"))) == 3
    topic.erase(key=SECRET)
    journal.maintain()
    left = {one for one in what_is_left(place, journal) if "_delta_log" not in one and "metadata" not in one}
    assert left == set()
    fill(topic, 5)
    seal_topic(journal.backend.core, "orders", lake=str(lake))
    assert len(list(topic.read())) == 41  # four dedup keys are known still


@on("sqlite")
def test_a_seal_that_has_read_the_event_before_records_nothing(
    journal: Journal, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = journal.topic("orders")
    assert isinstance(journal, LocalJournal)
    fill(topic, 20)
    write = sealing.write_segment

    def meanwhile(*args: Any) -> Any:
        made = write(*args)
        monkeypatch.setattr(sealing, "write_segment", write)
        topic.erase(key=SECRET)
        return made

    monkeypatch.setattr(sealing, "write_segment", meanwhile)
    with pytest.raises(ConfigError, match="begun to seal"):
        seal_topic(journal.backend.core, "orders", lake=str(place.folder / "lake"), through=20)
    journal.maintain()
    assert what_is_left(place, journal) == set()
    assert len(list(topic.read())) == 20


def test_blocks_that_are_stored_apart_go_as_well(
    journal: Journal, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_in_steps(monkeypatch, 20)
    assert isinstance(journal, LocalJournal)
    made = [build_wire(Columns(["k"] * 5, [SECRET.encode()] * 5, [True] * 5), 0, 0, 0) for _ in range(4)]
    publish_blocks(journal, Blocks(iter([("orders", wire) for wire in made]), 1000, 20, False), "job", 1)
    topic = journal.topic("orders")
    assert topic.erase(range(1, 18)).events == 17
    assert topic.erase([18, 19, 20]).events == 3
    journal.maintain()
    assert what_is_left(place, journal) == set()
    assert [event.erased for event in topic.read()] == [True] * 20


@on("memory", "sqlite")
def test_an_erasure_goes_on_wherever_it_was_cut_off(
    place: Place, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = place.open(clock=clock)
    assert isinstance(journal, LocalJournal)
    everything(journal, place.folder, lake=True)
    before = {name: [e.as_dict() for e in journal.topic(name).read()] for name in ("orders",)}
    commits, run, steps = 0, Writer.run, 0

    def cut(self: Writer, operation: Any) -> Any:
        nonlocal commits
        commits -= 1
        if not commits:
            raise KeyboardInterrupt
        return run(self, operation)

    done = False
    while not done:
        steps += 1
        commits = steps
        with monkeypatch.context() as patched:
            patched.setattr(Writer, "run", cut)
            try:
                forget(journal)
                done = True
            except KeyboardInterrupt:
                pass
        if steps % 5 == 0:
            journal.maintain()
    assert steps > 5
    journal.maintain()
    assert what_is_left(place, journal) == set()
    kept = [one for one in before["orders"] if one["key"] not in (SECRET, None)]
    assert [e.as_dict() for e in journal.topic("orders").read() if e.key] == kept


def what_is_left(place: Place, journal: Journal) -> set[str]:
    """Returns the places where the secret is still found, but for tables that SlateDB collects when it wants to."""
    assert isinstance(journal, LocalJournal)
    found = places_with(place.folder, [SECRET], journal)
    return {one for one in found if place.kind.scheme != "slatedb" or not one.startswith("file store/")}


@on("sqlite")
def test_every_way_to_read_shows_an_erased_event(journal: Journal, topic: Topic, place: Place) -> None:
    fill(topic)
    topic.erase([4], by="ada")
    (table,) = topic.read_arrow()
    row = table.slice(3, 1).to_pylist()[0]
    assert (row["payload"], row["key"], row["scope"]) == ("null", None, None) and not row["tags"]
    assert dict(row["headers"])["erased-by"] == "ada"
    rows = journal.sql("select seq from orders where headers['erased-by'] = 'ada'").column(0).to_pylist()
    assert rows == [4]
    with topic.subscribe(after=3) as following:
        assert next(iter(following)).erased
    journal.export(place.folder / "out")
    with penstock.open("memory:") as other:
        other.import_(place.folder / "out")
        assert [event.erased for event in other.topic("orders").read()] == [seq == 4 for seq in range(1, 11)]
        assert seen(other.topic("orders").read()) == seen(topic.read())


def everything(journal: LocalJournal, folder: Path, *, lake: bool) -> None:
    """A journal that has the secret in every place that it knows."""
    orders = journal.topic("orders")
    orders.configure(verified=not lake)
    fill(orders, 40)
    orders.append_many([Draft("placed", {"n": n, "s": SECRET * 20}, key=SECRET, scope=SECRET) for n in range(300)])
    orders.rebuild(Total)
    orders.project(Total)
    orders.verify()
    if lake:
        journal.maintain()
        seal_topic(journal.backend.core, "orders", lake=str(folder / "lake"), through=200)
    fill(orders, 5)
    jobs = journal.queue("jobs", dead_letter="jobs.dead", max_attempts=1, feed=True, rate_per_key="100/s")
    for n in range(12):
        who = SECRET if n % 2 else "other"
        jobs.push({"who": who}, key=None if n % 4 < 2 else who, headers={"h": who}, dedup=f"{who}-{n}", reply=True)
    for n in range(4):
        delivery = jobs.take(consumer="c")
        assert delivery is not None
        if n % 2:
            delivery.nack(error=f"could not handle {delivery.payload['who']}")
        else:
            delivery.ack(result=f"handled {delivery.payload['who']}")
    jobs.take_many(2)
    kept = journal.queue("kept", max_attempts=1)
    for _ in range(3):
        kept.push({"who": SECRET}, key=SECRET)
    kept.take_many(1)[0].nack(error=SECRET)


def forget(journal: Journal) -> None:
    """Erases everything that is known of the customer."""
    for name in ("orders", "jobs", "kept"):
        journal.topic(name).erase(where=f"payload.who == '{SECRET}'")
        journal.topic(name).erase(key=SECRET)
    journal.topic("orders").erase(key_prefix=SECRET)


@pytest.mark.parametrize("lake", [False, True], ids=["verified", "sealed"])
@on("memory", "sqlite", "rocksdb", "file", "slatedb")
def test_after_erase_and_maintain_no_byte_is_left(place: Place, clock: ManualClock, tmp_path: Path, lake: bool) -> None:
    journal = place.open(clock=clock)
    assert isinstance(journal, LocalJournal)
    everything(journal, place.folder, lake=lake)
    journal.flush()
    before = places_with(place.folder, [SECRET], journal)
    assert {one.split(" ")[0] for one in before} == ({"row", "file"} if place.kind.on_disk or lake else {"row"})
    forget(journal)
    journal.maintain()
    assert what_is_left(place, journal) == set()
    assert all(SECRET not in repr(event.as_dict()) for name in journal.topics() for event in journal.topic(name).read())
