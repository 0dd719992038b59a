"""Takes a contract suite over: its tests are run here against a served journal, but for those that cannot be."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from types import CodeType, MappingProxyType
from typing import Any

CONTRACT = Path(__file__).resolve().parents[2] / "contract"
for room in sorted(CONTRACT.iterdir()):
    if room.is_dir() and str(room) not in sys.path:
        sys.path.append(str(room))

WRITER = "it looks into the writer or the engine, which are the server's"
TRANSACTION = "transactions hold the writer, which nobody may from afar"
LAG = "over http a subscription always catches up"
MANY = "it asks thousands of questions, which says no more about http than a few do"
STORE = "it is about the store's own files or memory, and asks them past the server"
PAGES = "a read asks for one page after the other: between two of them nothing is held"
CLOCK = "the journal's clock is moved, and a client has the machine's"
SENT = "what the server sent before the compaction has arrived by then"


INSIDE = {"_core", "_engine", "_writer"}
"""What a client has not: a test that names one of these is left out without being listed."""


def _names(code: CodeType) -> set[str]:
    inner = (each for each in code.co_consts if isinstance(each, CodeType))
    return set(code.co_names).union(*map(_names, inner))


def contract_of(module: str, without: Mapping[str, str] = MappingProxyType({})) -> dict[str, Any]:
    """The tests (and their fixtures) of a contract module, without those that are left out, each for its reason."""
    suite = vars(importlib.import_module(module))
    inside = {name for name, test in suite.items() if name.startswith("test_") and _names(test.__code__) & INSIDE}
    unknown = set(without) - (set(suite) - inside)
    assert not unknown, f"{module} has no {unknown}, or they are left out anyway"
    taken = {
        name: value for name, value in suite.items() if not name.startswith("__") and name not in {*without, *inside}
    }
    assert any(name.startswith("test_") for name in taken)
    return taken
