"""A journal's path: what a mistyped one does, and how two programs find out that theirs differ."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import penstock
from penstock.errors import ConfigError, NoStore
from waiting import eventually

ENGINES = ["", "sqlite:", "file:", "rocksdb:", "slatedb:"]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_missing_parent_folder_is_an_error_and_nothing_is_made(engine: str, tmp_path: Path) -> None:
    place = tmp_path / "vra" / "shop"
    with pytest.raises(
        ConfigError, match=f"there is no folder {place.parent} for the journal {place}: make the folder"
    ):
        penstock.open(f"{engine}{place}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("engine", ENGINES)
def test_create_false_opens_what_is_there_and_makes_nothing(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NoStore) as found:
        penstock.open(f"{engine}shop", create=False)
    assert "there is no journal at " in str(found.value) and "create=True makes one" in str(found.value)
    assert str(tmp_path / "shop") in str(found.value)
    assert list(tmp_path.iterdir()) == []
    with penstock.open(f"{engine}shop") as journal:
        journal.topic("orders").append("placed")
    with penstock.open(f"{engine}shop", create=False) as journal:
        journal.topic("orders").append("placed")
        assert journal.topic("orders").latest == 2


def test_create_false_knows_stores_in_memory_by_name() -> None:
    with pytest.raises(NoStore, match="there is no journal at memory:of-no-program; create=True makes one"):
        penstock.open("memory:of-no-program", create=False)
    penstock.open("memory:", create=False).close()


def test_open_without_an_argument_opens_what_the_environment_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_URL", str(tmp_path / "shop.db"))
    with pytest.raises(NoStore, match=str(tmp_path / "shop.db")):
        penstock.open(create=False)
    penstock.open().close()
    assert (tmp_path / "shop.db").exists() and not (tmp_path / "penstock.db").exists()


def test_two_programs_in_different_folders_find_out_that_their_journals_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A web app and a worker that both say "shop.db": the log names the place from the root, and the ids differ."""
    caplog.set_level(logging.INFO)
    ids = []
    for folder in ("web", "worker"):
        (tmp_path / folder).mkdir()
        monkeypatch.chdir(tmp_path / folder)
        with penstock.open("shop.db") as journal:
            ids.append(journal.id)
            place = f"<journal sqlite:{tmp_path / folder / 'shop.db'}>"
            assert repr(journal) == place and f"a new journal was made: {place}" in caplog.text
            caplog.clear()
            worker = journal.queue("mails").worker(print, concurrency=1)
            says = f"begins; its journal is {place}"
            with worker:
                eventually(lambda says=says: says in caplog.text)
    assert ids[0] != ids[1]
