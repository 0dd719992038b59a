"""Conditional puts in a folder: one of those who race wins, and a process that slept cannot win late."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from penstock.engines.slatedb import lease as module
from penstock.engines.slatedb.lease import FolderStore
from penstock.objects.store import VersionConflict


def test_an_object_is_made_once_and_replaced_by_who_knows_it(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "shop")
    assert store.read("penstock/lease") is None
    first = store.put_if("penstock/lease", b"one", None)
    with pytest.raises(VersionConflict):
        store.put_if("penstock/lease", b"two", None)
    found = store.read("penstock/lease")
    assert found is not None and (bytes(found.data), found.version) == (b"one", first)
    second = store.put_if("penstock/lease", b"two", first)
    with pytest.raises(VersionConflict):
        store.put_if("penstock/lease", b"three", first)
    again = store.read("penstock/lease", found)
    assert again is not None and bytes(again.data) == b"two" and store.read("penstock/lease", again) is again
    assert second != first


def test_of_many_who_replace_one_version_one_wins_every_time(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    version = store.put_if("x", b"0", None)
    for round_ in range(20):
        won: list[bytes] = []
        ready = threading.Barrier(6)

        def race(
            name: int, version: object = version, won: list[bytes] = won, ready: threading.Barrier = ready
        ) -> None:
            ready.wait(30)
            try:
                store.put_if("x", b"%d" % name, version)
            except VersionConflict:
                return
            won.append(b"%d" % name)

        threads = [threading.Thread(target=race, args=(name,), daemon=True) for name in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        found = store.read("x")
        assert found is not None and won == [bytes(found.data)], f"round {round_}"
        version = found.version


def test_a_put_that_slept_until_its_number_was_free_again_loses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FolderStore(tmp_path)
    old = store.put_if("x", b"old", None)
    version = old
    for number in range(2 * module.KEPT):
        version = store.put_if("x", b"%d" % number, version)
    real = module._newest
    # The sleeper compared before it slept, and links now: its number is free, since that version was removed.
    answers = [old]
    monkeypatch.setattr(module, "_newest", lambda place: answers.pop() if answers else real(place))
    with pytest.raises(VersionConflict):
        store.put_if("x", b"late", old)
    found = store.read("x")
    assert found is not None and found.version == version and bytes(found.data) != b"late"


def test_old_versions_are_removed(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    version = None
    for number in range(50):
        version = store.put_if("x", b"%d" % number, version)
    assert len(list(tmp_path.iterdir())) <= module.KEPT + 1
