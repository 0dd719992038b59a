"""States rebuilt over http: folded where the projection is, saved where the store is."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import penstock
from penstock import Draft, Projection, on
from penstock.api import local
from penstock.core.entity.states import SNAPSHOT, StreamedState, pack_state
from penstock.core.journal.keys import prefix_end
from penstock.core.protocol.bulk import RebuiltStatesRequest
from penstock.errors import ConfigError, Denied, PositionTrimmed
from penstock.remote import topic as rebuilding
from server.serving import ADMIN, TOKENS, WRITE, Served, serving


class Till(Projection, name="till"):
    total: int = 0
    seen: list[int] = []

    @on("paid")
    def paid(self, event: Any) -> None:
        self.total += event.payload["amount"]
        self.seen = [*self.seen[-3:], event.seq]


class OldTill(Till, name="till", version=2):
    pass


def fill(journal: penstock.Journal, count: int) -> None:
    kinds, keys = ("paid", "noted", "paid"), [None, *(f"k{n}" for n in range(19))]
    drafts = [Draft(kinds[n % 3], {"amount": n % 9}, key=keys[n % 20]) for n in range(count)]
    journal.topic("tills").append_many(drafts)


def saved(journal: penstock.Journal) -> dict[bytes, bytes]:
    with local(journal, "a test")._engine.read() as snap:
        return dict(snap.scan(SNAPSHOT, prefix_end(SNAPSHOT)))


def test_a_served_rebuild_saves_the_bytes_that_one_beside_the_store_saves(
    served: Served, journal: penstock.Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(journal, 2_500)
    here = journal.topic("tills").rebuild(Till)
    expected = saved(journal)
    journal.topic("tills").rebuild(OldTill)
    monkeypatch.setattr(rebuilding, "MOST_STATES", 7)  # several requests
    told: list[tuple[int, int]] = []
    with penstock.open(served.url) as remote:
        report = remote.topic("tills").rebuild(Till, progress=lambda *done: told.append(done))
        assert report == here and told[-1] == (2_500, 2_500)
        assert saved(journal) == expected and len(expected) == 19  # the other version's have gone
        assert remote.topic("tills").rebuild(Till, whole=True).entities == 1
        assert remote.topic("nothing").rebuild(Till).entities == 0
    assert journal.topic("tills").project(Till) == Till.fold(journal.topic("tills").read())
    assert "nothing" not in journal.topics()


def test_a_rebuild_that_may_not_or_cannot_leaves_what_is_saved(journal: penstock.Journal) -> None:
    fill(journal, 100)
    topic = journal.topic("tills")
    topic.rebuild(Till)
    kept = saved(journal)
    with serving(journal, tokens=TOKENS) as guarded:
        with (
            penstock.open(guarded.url, token=WRITE) as other,
            pytest.raises(Denied, match="needs the role admin"),
        ):
            other.topic("tills").rebuild(Till)
        with penstock.open(guarded.url, token=ADMIN) as writer:
            with pytest.raises(ConfigError, match=r"derived from penstock\.Projection"):
                writer.topic("tills").rebuild(dict)  # type: ignore[type-var]

            def append(done: int, total: int) -> None:
                topic.append("paid", {"amount": 1}, key="k1")

            writer.topic("tills").rebuild(Till, progress=append)  # what comes meanwhile is for project to fold
            assert saved(journal) == kept and topic.project(Till, "k1") == Till.fold(topic.read(key="k1"))
            topic.append("paid", {}, key="k1")
            with pytest.raises(KeyError, match="amount"):
                writer.topic("tills").rebuild(Till)
            assert saved(journal) == kept


def test_a_topic_that_is_dropped_meanwhile_gets_no_states_of_the_one_before(
    served: Served, journal: penstock.Journal
) -> None:
    fill(journal, 100)

    def drop(done: int, total: int) -> None:
        journal.drop_topic("tills")
        fill(journal, 10)

    with penstock.open(served.url) as remote, pytest.raises(PositionTrimmed, match="was dropped"):
        remote.topic("tills").rebuild(Till, progress=drop)
    assert saved(journal) == {}


def test_what_the_server_refuses_to_save(served: Served, journal: penstock.Journal) -> None:
    fill(journal, 10)
    found = served.get("/v1/topics/tills/states").json
    assert found == {"journal": journal.id, "through": 10, "events": 10, "compacted": 0}
    state = {"key": "k1", "fingerprint": 1, "generation": 5, "first": 2, "state": ""}
    right = {"journal": journal.id, "compacted": 0, "name": "till", "version": 1, "states": [state]}
    refused = {
        "another journal is served": {"journal": "other"},
        "a key is text": {"states": [{**state, "key": "k" * 5_000}]},
        "begins at 9 and ends at 5": {"states": [{**state, "first": 9}]},
        "the topic's are 1 to 10": {"states": [{**state, "generation": 11}]},
        "'the whole topic' says": {"states": [{**state, "key": "", "generation": 1 << 60}]},
        "longer than 255 bytes": {"name": "€" * 100},
        "int": {"version": 0},
    }
    for said, change in refused.items():
        answer = served.ask("PUT", "/v1/topics/tills/states", {**right, **change})
        assert 400 <= answer.status < 500 and said in answer.data.decode(), (said, answer.data)
    assert saved(journal) == {}
    assert served.ask("PUT", "/v1/topics/tills/states", right).json == {"saved": 1} and len(saved(journal)) == 1


def test_a_state_that_is_not_what_its_events_give_is_found_and_mended(
    served: Served, journal: penstock.Journal
) -> None:
    fill(journal, 100)
    topic = journal.topic("tills")
    topic.rebuild(Till)
    topic.rebuild(Till, whole=True)
    topic.append("paid", {"amount": 1}, key="k1")  # a state may be behind, and right
    assert topic.verify_states(Till) == topic.verify_states(OldTill) == []
    right, through = topic.project(Till, "k1"), topic.latest
    forged = pack_state(Till(total=1_000_000))
    state = StreamedState("k1", Till.__projection__.fingerprint, through, 2, forged)
    asked = RebuiltStatesRequest(journal.id, 0, "till", 1, [state])
    assert served.ask("PUT", "/v1/topics/tills/states", msgspec.to_builtins(asked)).status == 200
    assert topic.project(Till, "k1") == Till(total=1_000_000) and topic.verify_states(Till) == ["k1"]
    with penstock.open(served.url) as remote, pytest.raises(ConfigError, match="penstock rebuild --check"):
        remote.topic("tills").verify_states(Till)
    topic.rebuild(Till)
    assert topic.verify_states(Till) == [] and topic.project(Till, "k1") == right
