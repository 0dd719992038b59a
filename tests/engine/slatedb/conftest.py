"""Where a journal in object storage lies in these tests: in a folder, in an emulator, or behind a proxy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from object_homes import Home
from store_proxy import StoreProxy

from buffer.azure_emulator import AzureEmulator, azurite
from buffer.emulator import Emulator


@pytest.fixture(params=["folder", "s3", *(["azure"] if azurite() else [])])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Home]:
    """A new place in a store of each kind."""
    if request.param == "folder":
        place = Home(f"slatedb:{tmp_path / 'shop'}")
    elif request.param == "azure":
        azure: AzureEmulator = request.getfixturevalue("azure")
        place = Home(f"{azure.container()}/shop", azure.options)
    else:
        emulator: Emulator = request.getfixturevalue("emulator")
        place = Home(f"{emulator.bucket()}/shop", emulator.options)
    yield place
    place.close()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Home]:
    place = Home(f"slatedb:{tmp_path / 'shop'}")
    yield place
    place.close()


@pytest.fixture
def proxy(emulator: Emulator) -> Iterator[StoreProxy]:
    running = StoreProxy(emulator.endpoint)
    yield running
    running.heal()
    running.stop()


@pytest.fixture
def behind(proxy: StoreProxy, emulator: Emulator) -> Iterator[Home]:
    """A new place in the S3 emulator, reached through the proxy."""
    place = Home(f"{emulator.bucket()}/shop", {**emulator.options, "endpoint": proxy.endpoint})
    yield place
    proxy.heal()
    place.close()
