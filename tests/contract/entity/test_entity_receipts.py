from __future__ import annotations

import sys
from collections.abc import Callable

import msgspec
import pytest
from journals import Place, on

import penstock
from penstock import (
    Draft,
    InclusionProof,
    Journal,
    ManualClock,
    Topic,
    TreeRoot,
    check_proof,
    check_root,
    sign_root,
)
from penstock.core.entity import receipts
from penstock.core.entity.proof import EMPTY, root_of
from penstock.core.journal import keys
from penstock.core.journal.blocks import build_copies, columns_of, low_bytes, read_block
from penstock.core.local.backend import LocalJournal
from penstock.errors import ConfigError, Unprovable


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of eight positions."""
    monkeypatch.setattr(receipts, "SEGMENT", 8)
    monkeypatch.setattr(receipts, "EMPTY_SEGMENT", root_of([EMPTY] * 8))


def fill(topic: Topic, count: int) -> None:
    topic.append_many([Draft("e", {"n": n}, key=f"k{n % 3}", headers={"b": "2", "a": "1"}) for n in range(count)])


def published(topic: Topic) -> TreeRoot:
    root = topic.verify().root
    assert root is not None
    return root


def test_every_event_can_be_proven_whatever_the_size(topic: Topic) -> None:
    for size in range(1, 20):
        fill(topic, 1)
        root = published(topic)
        assert (root.topic, root.through) == ("orders", size)
        for seq in {1, size // 2 + 1, size}:
            proof = topic.proof(seq)
            assert check_proof(proof, root=root).ok
            assert proof.event["seq"] == seq and proof.event["payload"] == b'{"n":0}'


def test_a_receipt_is_proven_with_everything_its_event_says(topic: Topic) -> None:
    fill(topic, 20)
    receipt = topic.append("paid", {"amount": 3}, key="k1", scope="s", headers={"x": "y"})
    root = published(topic)
    proof = InclusionProof.from_json(topic.proof(receipt).to_json())
    assert check_proof(proof, root=TreeRoot.from_json(root.to_json()))
    said = proof.event
    assert (said["id"], said["kind"], said["key"], said["scope"]) == (receipt.id, "paid", "k1", "s")
    assert said["headers"] == {"x": "y"} and said["payload"] == b'{"amount":3}'
    (event,) = topic.read(20)
    assert topic.proof(event) == topic.proof(receipt) == topic.proof(21)


def test_a_proof_that_was_changed_does_not_hold(topic: Topic) -> None:
    fill(topic, 21)
    root = published(topic)
    proof = topic.proof(11)
    change = msgspec.structs.replace
    wrong = [
        change(proof, seq=12),
        change(proof, seq=22),
        change(proof, seq=0),
        change(proof, leaf=proof.leaf.replace(b'"n":10', b'"n":11')),
        change(proof, leaf=b"\xc1"),
        change(proof, path=proof.path[:-1]),
        change(proof, path=[*proof.path, proof.path[0]]),
        change(proof, path=["zz"]),
        change(proof, path=proof.path[::-1]),
        change(proof, root=change(root, hash="00" * 32)),
        change(proof, root=change(root, through=20)),
        change(proof, root=change(root, topic="others")),
    ]
    for one in wrong:
        assert not check_proof(one, root=root), one
    assert check_proof(proof, root=root) and check_proof(proof)


def test_a_root_names_a_position_and_what_comes_later_needs_a_later_one(topic: Topic) -> None:
    fill(topic, 10)
    first = published(topic)
    later = topic.append("e", 1)
    with pytest.raises(Unprovable, match="verify"):
        topic.proof(later)
    with pytest.raises(Unprovable, match="through 10"):
        topic.proof(later, root=first)
    second = published(topic)
    assert check_proof(topic.proof(later), root=second)
    assert check_proof(topic.proof(3, root=first), root=first)
    assert check_proof(topic.proof(3), root=second)
    assert not check_proof(topic.proof(3), root=first)


def test_the_same_history_has_the_same_root(
    journal: Journal, topic: Topic, clock: ManualClock, reopen: Callable[[Journal], Journal]
) -> None:
    for _ in range(5):
        fill(topic, 5)
    root = published(topic)
    journal.maintain()
    clock.advance(5)
    assert published(topic) == root
    again = reopen(journal).topic("orders")
    if again.latest:  # a store in memory ends with its journal
        assert published(again) == root


def test_after_compaction_other_segments_are_proven_under_the_old_root(topic: Topic) -> None:
    fill(topic, 30)
    root = published(topic)
    before = topic.proof(10)
    topic.compact(12)
    for seq in range(17, 31):
        assert check_proof(topic.proof(seq, root=root), root=root)
    for gone in (3, 10, 12):
        with pytest.raises(Unprovable, match="no event at position"):
            topic.proof(gone, root=root)
    with pytest.raises(Unprovable, match=r"between positions 9 and 16.*proofs given before still hold"):
        topic.proof(14, root=root)
    assert check_proof(before, root=root)
    fill(topic, 3)
    assert topic.verify().ok and check_proof(topic.proof(32), root=published(topic))


def test_a_topic_compacted_before_its_first_root_can_be_proven(topic: Topic) -> None:
    fill(topic, 30)
    topic.compact(19)
    root = published(topic)
    for seq in range(20, 31):
        assert check_proof(topic.proof(seq), root=root)


def test_compaction_by_key_breaks_no_published_root(topic: Topic) -> None:
    fill(topic, 24)
    root = published(topic)
    topic.append("e", "alone")
    topic.compact_keys()
    assert topic.verify().ok
    assert check_proof(topic.proof(25), root=published(topic))
    with pytest.raises(Unprovable):
        topic.proof(24, root=root)


def test_an_event_that_was_changed_in_the_store_is_found(journal: Journal, topic: Topic) -> None:
    fill(topic, 20)
    published(topic)
    assert isinstance(journal, LocalJournal)
    with journal._engine.write() as tx:
        rows = list(tx.scan(*keys.block_range(1)))
        for key, value in rows:
            block = read_block(value, "orders")
            columns = columns_of(block, range(block.count))
            columns.payloads = [payload.replace(b'"n":4}', b'"n":5}') for payload in columns.payloads]
            ids = [low_bytes(block.id_number(row)) for row in range(block.count)]
            times = [block.recorded_ms(row) for row in range(block.count)]
            tx.put(key, build_copies(columns, block.seqs, ids, times))
    report = topic.verify()
    assert report.broken is not None and report.broken.seq == 1 and "published root" in report.broken.reason
    assert report.root is None


def test_a_signed_root_is_checked_with_the_public_key(topic: Topic) -> None:
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    fill(topic, 3)
    key, other = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    signed = sign_root(published(topic), key)
    assert check_root(signed, key.public_key()) and not check_root(signed, other.public_key())
    proof = topic.proof(2, root=signed)
    pem = key.public_key().public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo)
    assert check_proof(InclusionProof.from_json(proof.to_json()), public_key=pem)
    assert not check_proof(proof, public_key=other.public_key())
    assert not check_proof(topic.proof(2), public_key=key.public_key())
    forged = msgspec.structs.replace(proof, root=msgspec.structs.replace(signed, through=2))
    assert not check_proof(forged, public_key=key.public_key())


@on("memory")
def test_keys_that_are_none_say_so(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    fill(topic, 1)
    root = published(topic)
    with pytest.raises(ConfigError, match="Ed25519"):
        sign_root(root, X25519PrivateKey.generate())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="PEM"):
        sign_root(root, b"secret")
    with pytest.raises(ConfigError, match="cannot be read"):
        sign_root(root, "/nowhere/key.pem")
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives", None)
    with pytest.raises(ConfigError, match=r"penstock\[signing\]"):
        sign_root(root, b"")


def test_what_cannot_be_proven_says_why(journal: Journal, topic: Topic) -> None:
    fill(topic, 3)
    root = published(topic)
    other = journal.topic("others").append("e", 1)
    for wrong, error, reason in (
        (other, ConfigError, "of topic 'others'"),
        (-1, ConfigError, "of"),
        (4, Unprovable, "no event at position 4"),
    ):
        with pytest.raises(error, match=reason):
            topic.proof(wrong)
    with pytest.raises(Unprovable, match="no such root"):
        topic.proof(1, root=msgspec.structs.replace(root, hash="00" * 32))
    with pytest.raises(ConfigError, match="TreeRoot"):
        topic.proof(1, root="root")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="InclusionProof"):
        check_proof("proof")  # type: ignore[arg-type]
    for reader in (TreeRoot.from_json, InclusionProof.from_json):
        with pytest.raises(ConfigError, match="JSON"):
            reader("{}")


@on("sqlite")
def test_a_journal_opened_for_reading_gives_proofs_and_publishes_nothing(place: Place) -> None:
    with penstock.open(place.url) as journal:
        fill(journal.topic("orders"), 9)
        root = published(journal.topic("orders"))
        journal.topic("orders").append("e", 1)
    with penstock.open(place.url, read_only=True) as reader:
        topic = reader.topic("orders")
        assert check_proof(topic.proof(4), root=root)
        assert published(topic).through == 10
        with pytest.raises(Unprovable):
            topic.proof(10)


def test_a_root_stays_published_when_its_last_segment_has_lost_events(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receipts, "SEGMENT", 8)
    monkeypatch.setattr(receipts, "EMPTY_SEGMENT", root_of([EMPTY] * 8))
    topic.append_many([Draft("placed", number) for number in range(1, 9)])
    topic.append_many([Draft("placed", number, key="a") for number in range(9, 13)])
    before = topic.verify().root
    assert before is not None and topic.compact_keys() == 3
    after = topic.verify().root
    assert after is not None and (after.through, after.hash == before.hash) == (12, False)
    for root in (before, after):
        for seq in range(1, 9):
            assert check_proof(topic.proof(seq, root=root), root=root)
    assert check_proof(topic.proof(12, root=after), root=after)
    with pytest.raises(Unprovable, match="were removed or changed since"):
        topic.proof(12, root=before)
    assert topic.verify().root == after, "what is published is not published again"
    topic.compact(9)
    topic.compact(12)
    assert topic.verify().root is not None
    with pytest.raises(Unprovable, match="no event at position"):
        topic.proof(12, root=after)
