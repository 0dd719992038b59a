"""Seeded schedules in one thread: nothing published is lost or doubled, only the owner moves on, leases hold."""

from __future__ import annotations

import pytest

from torture import simulation


def test_no_schedule_loses_or_doubles_what_was_published() -> None:
    for seed in range(20):
        assert simulation.play(seed)[1] == [], f"python -m torture.simulation --count 1 --seed {seed}"


@pytest.mark.parametrize("kind", simulation.INTRUSIONS)
def test_a_fence_a_collection_or_a_death_at_any_step_loses_nothing(kind: str) -> None:
    for step in range(1, 300, 40):
        assert simulation.play(7, intrusion=(kind, step))[1] == [], step


def test_no_schedule_of_workers_loses_a_message_or_gives_it_to_two() -> None:
    for seed in range(8):
        assert simulation.play_queue(seed, 300) == [], seed


def test_a_schedule_is_the_same_for_the_same_seed() -> None:
    worlds = [simulation.World(5) for _ in range(2)]
    for world in worlds:
        world.play(300)
    assert worlds[0].sink.entries == worlds[1].sink.entries and worlds[0].sink.entries


def test_the_simulation_finds_a_store_whose_conditional_puts_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks can fail: a store that does not compare versions loses batches and doubles owners."""

    def put_always(store: simulation.PlainStore, path: str, data: bytes, version: object) -> int:
        store.put(path, data)
        return store._version

    monkeypatch.setattr(simulation.PlainStore, "put_if", put_always)
    assert any(simulation.play(seed)[1] for seed in range(10))
