"""Which engine a url opens, and what a bad one says."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import penstock
from penstock.core.engine.url import open_engine, other_engines, parse_url
from penstock.errors import ConfigError


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("shop.db", ("sqlite", "shop.db")),
        ("data/shop.db", ("sqlite", "data/shop.db")),
        ("/var/shop.db", ("sqlite", "/var/shop.db")),
        (Path("/var/shop.db"), ("sqlite", "/var/shop.db")),
        (Path("rocksdb:shop"), ("sqlite", "rocksdb:shop")),
        ("sqlite:shop.db", ("sqlite", "shop.db")),
        ("SQLite:shop.db", ("sqlite", "shop.db")),
        ("sqlite:/var/shop.db", ("sqlite", "/var/shop.db")),
        ("sqlite:///var/shop.db", ("sqlite", "/var/shop.db")),
        ("rocksdb:shop", ("rocksdb", "shop")),
        ("rocksdb:///var/shop", ("rocksdb", "/var/shop")),
        ("rocksdb:shop", ("rocksdb", "shop")),
        ("file:shop", ("file", "shop")),
        ("file:///var/shop", ("file", "/var/shop")),
        ("memory:", ("memory", "")),
        ("memory://", ("memory", "")),
        ("memory:cart", ("memory", "cart")),
        ("memory://cart", ("memory", "cart")),
        (r"C:\shop\shop.db", ("sqlite", r"C:\shop\shop.db")),
        ("C:/shop/shop.db", ("sqlite", "C:/shop/shop.db")),
        ("./odd:name.db", ("sqlite", "./odd:name.db")),
        ("/var/odd:name.db", ("sqlite", "/var/odd:name.db")),
        ("sqlite:odd:name.db", ("sqlite", "odd:name.db")),
        ("sqlite:with space.db", ("sqlite", "with space.db")),
    ],
)
def test_a_url_names_an_engine_and_a_path(url: str | Path, expected: tuple[str, str]) -> None:
    assert parse_url(url) == expected


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("postgres:shop", r"'postgres' is not one of memory:, sqlite:, file:, rocksdb:, slatedb:, az:, gs:, s3:"),
        ("odd:name.db", r"sqlite:\./name"),
        ("", "no path"),
        ("sqlite:", "no path"),
        ("rocksdb://", "machine|no path"),
        (":memory:", "memory:"),
        ("sqlite::memory:", "memory:"),
        ("sqlite://host/shop.db", "machine"),
        ("shop\0.db", "null byte"),
        (7, "not by int"),
        (b"shop.db", "not by bytes"),
    ],
)
def test_a_bad_url_says_what_is_wrong(url: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_url(url)  # type: ignore[arg-type]


def test_an_lmdb_url_says_which_version_still_opens_it_and_how_to_move_it() -> None:
    with pytest.raises(ConfigError, match=r"0\.1\.0.*penstock copy lmdb:/var/shop sqlite:"):
        open_engine("lmdb:/var/shop")


@pytest.mark.parametrize("scheme", ["file", "rocksdb", "slatedb"])
def test_a_folder_behind_a_link_that_leads_nowhere_is_refused(scheme: str, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"a link to .*nowhere, which is not there"):
        open_engine(f"{scheme}:{tmp_path / 'link'}")


def test_a_missing_package_names_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    monkeypatch.delitem(sys.modules, "penstock.engines.rocksdb", raising=False)

    with pytest.raises(ConfigError, match=r'pip install "penstock\[rocksdb\]"'):
        open_engine("rocksdb:anything")


def test_an_engine_of_another_package_opens_by_its_scheme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site"
    (package / "shelf-1.dist-info").mkdir(parents=True)
    (package / "shelf-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: shelf\nVersion: 1\n")
    (package / "shelf-1.dist-info" / "entry_points.txt").write_text(
        "[penstock.engines]\nshelf = shelf:ShelfEngine\nnothing = shelf:NOTHING\n"
    )
    (package / "shelf.py").write_text(
        "from penstock.core.engine.sqlite import SqliteEngine\nNOTHING = 3\n"
        "class ShelfEngine(SqliteEngine):\n    scheme = 'shelf'\n"
    )
    monkeypatch.syspath_prepend(package)
    other_engines.cache_clear()
    try:
        with penstock.open(f"shelf:{tmp_path / 'shop'}") as journal:
            journal.topic("orders").append("order.placed", {"total": 40})
            assert journal.describe().engine == "shelf"
            assert [event.payload for event in journal.topic("orders").read()] == [{"total": 40}]
        with pytest.raises(ConfigError, match=r"the nothing engine is 'shelf:NOTHING', and that is no subclass"):
            open_engine(f"nothing:{tmp_path / 'shop'}")
    finally:
        other_engines.cache_clear()


def test_every_open_of_memory_without_a_name_is_a_new_store() -> None:
    one, two = open_engine("memory:"), open_engine("memory:")
    with one.write() as tx:
        tx.put(b"a", b"1")

    with two.read() as snapshot:
        assert snapshot.get(b"a") is None
    assert one.location is None


def test_a_bare_path_is_a_sqlite_store(tmp_path: Path) -> None:
    engine = open_engine(tmp_path / "shop.db")
    assert engine.scheme == "sqlite"
    assert engine.location == str(tmp_path / "shop.db")
    engine.close()
    assert (tmp_path / "shop.db").read_bytes().startswith(b"SQLite format 3")
