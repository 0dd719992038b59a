"""What people do to a store changes no answer: programs that write, seal, compact, index, back up, move and drop.

Their seeds are fixed; every way to ask is compared after their steps. `python -m model.search` plays new ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from model.programs import Different, Program, Step, draw, play, smallest
from model.search import program_of, told
from model.store_world import RULES, StoreWorld
from penstock import Topic
from penstock.core.journal.index.index import Lookup
from server.over_http.shared_server import SharedServer

PROGRAMS, AT_ONCE = 200, 25


@pytest.fixture(scope="module")
def server() -> Iterator[SharedServer]:
    server = SharedServer()
    yield server
    server.close()


@pytest.mark.parametrize("first", range(0, PROGRAMS, AT_ONCE))
def test_whatever_is_done_to_a_store_every_way_to_ask_has_the_same_answer(server: SharedServer, first: int) -> None:
    for seed in range(first, first + AT_ONCE):
        failure = play(lambda program: StoreWorld(program, server), program_of(seed))
        if failure is not None:
            failure = smallest(lambda program: StoreWorld(program, server), failure)
            pytest.fail(told(failure), pytrace=False)


def step(name: str, *, look: bool = False, **given: Any) -> Step:
    return Step(name, given, look)


SEAL = step("seal", topic="a", share=None, file_events=1000, compact=False, elsewhere=False, partition_by=None)
FOUND: dict[str, tuple[Step, ...]] = {
    "sealed small and large batches, read by key after opening": (
        step("append", topic="a", count=1, seed=3, way="many"),
        step("append", topic="a", count=399, seed=5, way="many"),
        step("append", topic="a", count=1, seed=6, way="many"),
        SEAL,
        step("reopen", look=True),
    ),
    "a copy of what was compacted whole": (
        step("append", topic="a", count=2, seed=0, way="many"),
        step("compact", topic="a", share=1.0),
        step("export_and_import", format="parquet", twice=False, look=True),
        step("append", topic="a", count=1, seed=0, way="many", look=True),
    ),
}
"""Programs that failed once, at the limits that users have."""


@pytest.mark.parametrize("steps", FOUND.values(), ids=FOUND)
@pytest.mark.parametrize("engine", ["memory", "sqlite"])
def test_what_failed_once_holds(server: SharedServer, steps: tuple[Step, ...], engine: str) -> None:
    program = Program(0, {"engine": engine, "small": [], "http": True}, steps)
    failure = play(lambda program: StoreWorld(program, server), program)
    assert failure is None, str(failure)


def test_a_seed_is_one_program() -> None:
    assert program_of(5) == program_of(5) != program_of(6)
    drawn = {step.name for seed in range(PROGRAMS) for step in program_of(seed).steps}
    assert drawn == set(RULES)


def _doubled(self: Lookup, *given: Any, real: Any = Lookup.pieces, **named: Any) -> Any:
    found = list(real(self, *given, **named))
    return iter(found + found[-1:])


def _page_cut_short(self: Topic, *given: Any, real: Any = Topic.read, **named: Any) -> Any:
    found = list(real(self, *given, **named))
    return iter(found[:-1] if len(found) == 7 else found)


@pytest.mark.parametrize(
    ("place", "name", "fault", "way"),
    [(Lookup, "pieces", _doubled, "key"), (Topic, "read", _page_cut_short, "read")],
    ids=["a look-up that doubles", "a page that is cut one event early"],
)
def test_a_fault_is_found_and_shrunk(
    monkeypatch: pytest.MonkeyPatch, place: type, name: str, fault: Any, way: str
) -> None:
    """Agreement would mean nothing if a difference went unseen."""
    monkeypatch.setattr(place, name, fault)
    make = lambda program: StoreWorld(program, None)
    failure = next(failure for seed in range(20) if (failure := play(make, draw(RULES, StoreWorld.places, seed))))
    small = smallest(make, failure, 20)
    assert isinstance(small.error, Different) and way in str(small.error)
    assert len(small.program.steps) <= len(failure.program.steps)
    assert f"seed {small.program.seed}" in told(small)
