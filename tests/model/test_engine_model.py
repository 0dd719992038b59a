"""Every engine against a dict, through random transactions, snapshots, reopenings, crashes, compactions and backups.

A crash is a copy of the store's files as they are, opened in place of the original: what a process that dies leaves
behind. Everything committed must be there, whole, and nothing else.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from dead_store import copy_as_it_is
from nightly import examples
from penstock.core.engine import sorted_map
from penstock.core.engine.contract import Durability, Engine, ReadTx, WriteTx
from penstock.core.engine.sorted_map import Frozen, SortedMap
from penstock.core.engine.url import open_engine

END = b"\xff" * 600
SCHEMES = ["memory", "sqlite", "rocksdb", "file", "slatedb"]

State = dict[bytes, bytes]
_names = itertools.count()

keys = st.one_of(
    st.binary(min_size=1, max_size=2),
    st.sampled_from([b"\x00", b"\xff", b"\xff\xff", b"a", b"a\x00", b"a\xff", b"k" * 500, b"\xff" * 500]),
)
bounds = st.one_of(st.just(b""), st.just(END), keys)
values = st.one_of(st.binary(max_size=20), st.integers(1000, 200_000).map(lambda size: size.to_bytes(4) * (size // 4)))
operations = st.one_of(
    st.tuples(st.just("put"), keys, values),
    st.tuples(st.just("delete"), keys, st.just(b"")),
    st.tuples(st.just("delete_range"), bounds, bounds),
)


class EngineMachine(RuleBasedStateMachine):
    scheme = "memory"
    snapshots = Bundle("snapshots")

    @initialize(durability=st.sampled_from(["disk", "process"]))
    def start(self, durability: Durability) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-model-"))
        self.lives = itertools.count()
        self.name = f"engine-model-{next(_names)}"
        self.place = self.folder / "0"
        self.durability = durability
        self.model: State = {}
        self.unsafe: list[State] = []  # what may be left of the newest commits when the process dies, oldest first
        self.held: list[ReadTx] = []
        self.engine = self.open()

    def open(self) -> Engine:
        if self.scheme == "memory":
            return open_engine(f"memory:{self.name}")
        self.place.mkdir(exist_ok=True)
        return open_engine(f"{self.scheme}:{self.place / 'store'}", durability=self.durability)

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            for snapshot in self.held:
                snapshot.close()
            self.engine.close()
            shutil.rmtree(self.folder)

    @rule(changes=st.lists(operations, max_size=8), commits=st.booleans() | st.just(True), relaxed=st.booleans())
    def write(self, changes: list[tuple[str, bytes, bytes]], commits: bool, relaxed: bool) -> None:
        after = self.model.copy()
        try:
            with self.engine.write(sync=not relaxed) as tx:
                for name, first, second in changes:
                    self.change(tx, after, name, first, second)
                assert dict(tx.scan(b"", END)) == after
                if not commits:
                    raise ZeroDivisionError
        except ZeroDivisionError:
            return
        if self.scheme == "slatedb":  # a relaxed commit is in memory until the next one, or for a second
            self.unsafe = [*self.unsafe, self.model] if relaxed else []
        self.model = after

    def change(self, tx: WriteTx, model: State, name: str, first: bytes, second: bytes) -> None:
        if name == "put":
            tx.put(first, second)
            model[first] = second
        elif name == "delete":
            tx.delete(first)
            model.pop(first, None)
        else:
            tx.delete_range(first, second)
            for key in [key for key in model if first <= key < second]:
                del model[key]
        assert tx.get(first) == model.get(first)

    @rule(start=bounds, stop=bounds, reverse=st.booleans())
    def scan(self, start: bytes, stop: bytes, reverse: bool) -> None:
        expected = sorted((item for item in self.model.items() if start <= item[0] < stop), reverse=reverse)
        with self.engine.read() as snapshot:
            assert list(snapshot.scan(start, stop, reverse=reverse)) == expected

    @rule(target=snapshots)
    def take_snapshot(self) -> tuple[ReadTx, State]:
        snapshot = self.engine.read()
        self.held.append(snapshot)
        return snapshot, self.model.copy()

    @rule(held=snapshots, start=bounds, stop=bounds, reverse=st.booleans())
    def look_at_snapshot(self, held: tuple[ReadTx, State], start: bytes, stop: bytes, reverse: bool) -> None:
        snapshot, state = held
        if snapshot not in self.held:
            return
        expected = sorted((item for item in state.items() if start <= item[0] < stop), reverse=reverse)
        assert list(snapshot.scan(start, stop, reverse=reverse)) == expected
        assert snapshot.get(b"a") == state.get(b"a")

    @rule(held=consumes(snapshots))
    def close_snapshot(self, held: tuple[ReadTx, State]) -> None:
        held[0].close()
        if held[0] in self.held:
            self.held.remove(held[0])

    def forget_snapshots(self) -> None:
        for snapshot in self.held:
            snapshot.close()
        self.held.clear()

    @rule(durability=st.sampled_from(["disk", "process"]))
    def reopen(self, durability: Durability) -> None:
        self.forget_snapshots()
        self.engine.close()
        self.unsafe = []
        self.durability = durability
        self.engine = self.open()

    @rule()
    def crash(self) -> None:
        survivor = self.folder / str(next(self.lives) + 1)
        if self.scheme != "memory":
            copy_as_it_is(self.place, survivor)
        self.forget_snapshots()
        self.engine.close()
        self.place = survivor
        self.engine = self.open()
        if self.unsafe:
            with self.engine.read() as snapshot:
                found = dict(snapshot.scan(b"", END))
            assert found in [*self.unsafe, self.model]
            self.model, self.unsafe = found, []

    @rule()
    def reclaim(self) -> None:
        self.engine.reclaim()

    @rule()
    def flush(self) -> None:
        self.engine.flush()
        self.unsafe = []

    @rule()
    def back_up(self) -> None:
        if self.scheme == "memory":
            target = url = f"memory:engine-model-{next(_names)}"
        else:
            target = str(self.folder / f"backup-{next(_names)}")
            url = f"{self.scheme}:{target}"
        self.engine.backup(target)
        copy = open_engine(url, read_only=True)
        with copy.read() as snapshot:
            assert dict(snapshot.scan(b"", END)) == self.model
        copy.close()

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        if hasattr(self, "engine"):
            with self.engine.read() as snapshot:
                assert dict(snapshot.scan(b"", END)) == self.model
                assert snapshot.get(b"a") == self.model.get(b"a")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_an_engine_behaves_like_a_dict_with_snapshots_crashes_and_reopenings(scheme: str) -> None:
    machine = type(f"{scheme.title()}Machine", (EngineMachine,), {"scheme": scheme})
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine,
        settings=settings(
            max_examples=examples(10 if scheme == "slatedb" else 25),  # every opening makes a dozen objects
            stateful_step_count=30,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@settings(max_examples=examples(60), deadline=None, database=None)
@given(st.data())
def test_a_sorted_map_and_its_snapshots_behave_like_dicts(data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorted_map, "CHUNK", 4)
        tree: SortedMap[int] = SortedMap()
        model: dict[bytes, int] = {}
        held: list[tuple[Frozen[int], dict[bytes, int]]] = []
        names = st.binary(min_size=1, max_size=2)
        for step in range(data.draw(st.integers(1, 60))):
            match data.draw(st.sampled_from(["put", "put", "put", "delete", "delete_range", "snapshot", "close"])):
                case "put":
                    key = data.draw(names)
                    assert tree.put(key, step) == model.get(key)
                    model[key] = step
                case "delete":
                    key = data.draw(names)
                    assert tree.delete(key) == model.pop(key, None)
                case "delete_range":
                    start, stop = data.draw(names), data.draw(names)
                    gone = sorted(item for item in model.items() if start <= item[0] < stop)
                    assert tree.delete_range(start, stop) == gone
                    for key, _ in gone:
                        del model[key]
                case "snapshot":
                    held.append((tree.snapshot(), model.copy()))
                case "close" if held:
                    held.pop(data.draw(st.integers(0, len(held) - 1)))[0].close()
            for frozen, state in [*held, (tree, model)]:
                assert list(frozen.scan(b"", END)) == sorted(state.items())
                assert list(frozen.scan(b"\x01", b"\x80", reverse=True)) == sorted(
                    (item for item in state.items() if b"\x01" <= item[0] < b"\x80"), reverse=True
                )
            assert len(tree) == len(model)
            probe = data.draw(names)
            assert tree.get(probe) == model.get(probe)
