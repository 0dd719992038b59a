"""The engine contract in the emulators of S3 and Azure: the tests of `contract/engine` with another store under them.

Every push runs those that `nightly.py` names; `make nightly` runs them all.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from buffer.azure_emulator import azurite
from contract.engine import test_engine as contract
from engines import Kind, Store
from penstock.core.engine.contract import Durability, Engine
from penstock.core.engine.url import open_engine
from penstock.engines.slatedb.database import ObjectOptions


class RemoteStore(Store):
    """A place in an emulator."""

    def __init__(self, base: str, options: dict[str, Any], folder: Path) -> None:
        super().__init__(Kind("slatedb", shrinks=False, process_durability=False), folder)
        self.url = f"{base}/{uuid.uuid4().hex}"
        self._options = ObjectOptions(store=options)

    def open(self, *, read_only: bool = False, durability: Durability = "disk") -> Engine:
        engine = open_engine(self.url, read_only=read_only, durability=durability, options=self._options)
        self._open.append(engine)
        return engine


@pytest.fixture(params=["s3", *(["azure"] if azurite() else [])])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "s3":
        emulator = request.getfixturevalue("emulator")
        base = emulator.bucket()
    else:
        emulator = request.getfixturevalue("azure")
        base = emulator.container()
    store = RemoteStore(base, emulator.options, tmp_path)
    yield store
    store.close()


@pytest.fixture
def engine(store: Store) -> Engine:
    return store.open()


_ABOUT_FOLDERS = {"test_a_forked_child_is_told_to_open_the_store_again"}
"""These open the store by its url alone, in another process; the tests of failover do that here."""

for _name, _test in vars(contract).items():
    if not _name.startswith("test_") or _name in _ABOUT_FOLDERS:
        continue
    # Tests that choose engines by what they do by design ask for folders, or for several writers.
    if not any("store" in mark.args[0] for mark in getattr(_test, "pytestmark", ()) if mark.name == "parametrize"):
        globals()[_name] = _test
