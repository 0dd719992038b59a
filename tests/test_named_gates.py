"""Gates that are found by name: in modules, in files, and among installed packages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.core.entity.gate import (
    DeclaredGate,
    add_gates,
    check_gate_names,
    installed_gates,
    load_gates,
    names_in,
    with_installed,
)
from penstock.core.local.backend import LocalJournal
from penstock.errors import ConfigError, Denied
from server.process import ServerProcess

RULES = """
import penstock
from penstock.errors import Denied

@penstock.gate("orders", "returns", kind="placed", record="refusals")
def only_positive(draft):
    if draft.payload["n"] <= 0:
        raise Denied("n must be positive")

def plain(draft): ...
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "gate_rules.py").write_text(RULES)
    (tmp_path / "gate_broken.py").write_text("import json\njson.loads('no')\n")
    (tmp_path / "gate_needs.py").write_text("import nowhere_at_all\n")
    monkeypatch.syspath_prepend(tmp_path)
    installed_gates.cache_clear()
    yield tmp_path
    installed_gates.cache_clear()


@pytest.mark.parametrize("way", ["module", "file"])
def test_a_gate_is_found_by_module_and_by_file_and_binds_its_topics(folder: Path, way: str) -> None:
    name = "gate_rules:only_positive" if way == "module" else f"{folder}/gate_rules.py:only_positive"
    with penstock.open("memory:") as journal:
        assert isinstance(journal, LocalJournal)
        add_gates(journal._entities.gates, load_gates([name]))
        assert names_in(journal.describe().gates) == {name}
        for topic in ("orders", "returns"):
            with pytest.raises(Denied):
                journal.topic(topic).append("placed", {"n": 0})
        journal.topic("orders").append("cancelled", {"n": 0})
        journal.topic("others").append("placed", {"n": 0})
        journal.flush()
        assert [event.payload["gate"] for event in journal.topic("refusals").read()] == [name, name]


def test_installed_packages_name_gates_by_an_entry_point(folder: Path) -> None:
    about = folder / "shop_rules-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: shop-rules\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[penstock.gates]\npositive = gate_rules:only_positive\n")
    installed_gates.cache_clear()
    assert with_installed(["gate_rules:only_positive"]) == ("gate_rules:only_positive",), "one gate, asked once"
    assert load_gates(with_installed([]))["gate_rules:only_positive"].topics == ("orders", "returns")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gate_rules:nothing", "gate_rules has no nothing"),
        ("gate_rules:plain", r'gate_rules:plain is no gate: put @penstock\.gate\("orders"\) above it'),
        ("gate_nowhere:x", "there is no module 'gate_nowhere'"),
        (
            "gate_needs:x",
            r"cannot be imported: ModuleNotFoundError.*nowhere_at_all.*gate_needs\.py, line 1",
        ),
        ("gate_broken:x", "gate_broken:x cannot be imported: JSONDecodeError"),
        ("nowhere.py:x", r"there is no file nowhere\.py"),
    ],
)
def test_what_cannot_be_had_is_said(folder: Path, name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_gates([name])


@pytest.mark.parametrize("name", ["only_positive", ":x", "x:", ""])
def test_a_name_says_where_the_gate_is(name: str) -> None:
    with pytest.raises(ConfigError, match="a gate is named module:name"):
        check_gate_names([name])


def test_a_gate_is_named_once() -> None:
    with pytest.raises(ConfigError, match="a:b is named twice"):
        check_gate_names(["a:b", "c:d", "a:b"])


def test_a_server_asks_the_gates_it_was_started_with(folder: Path) -> None:
    options = ("--gates", f"{folder}/gate_rules.py:only_positive")
    with ServerProcess(folder / "shop.db", "", *options) as server, penstock.open(server.url) as journal:
        journal.topic("orders").append("placed", {"n": 1})
        with pytest.raises(Denied, match="n must be positive"):
            journal.topic("orders").append("placed", {"n": 0})


@penstock.gate("orders")
def here(draft: penstock.Draft) -> None:
    raise Denied("no")


def test_a_declared_gate_knows_its_name_and_can_be_called() -> None:
    assert here.name == f"{__name__}:here"
    with pytest.raises(Denied):
        here(penstock.Draft("made"))
    inner: DeclaredGate = penstock.gate("orders")(lambda draft: None)
    with pytest.raises(ConfigError, match="declare it at the top level"):
        _ = inner.name


def test_a_declaration_that_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="declared for topics"):
        penstock.gate()
    with pytest.raises(ConfigError, match="cannot be recorded in itself"):
        penstock.gate("orders", record="orders")
    with pytest.raises(ConfigError, match="goes above a function"):
        penstock.gate("orders")(print)
