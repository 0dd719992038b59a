"""One real, local Spark session for every test that asks for `spark`, and the journal that most tests are about."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest
from _pytest.terminal import TerminalReporter
from since import SPARK
from tiny_data import TINY_DATA

import penstock
import penstock.spark
from buffer.emulator import Emulator
from server.serving import TOKENS, WRITE, Served, serving

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What an older Spark cannot do is not asked of it; it leaves sockets to the garbage collector."""
    if SPARK < (4, 2):
        for item in items:
            item.add_marker(pytest.mark.filterwarnings("ignore:.*unclosed.*socket:ResourceWarning"))
            item.add_marker(
                pytest.mark.filterwarnings("ignore:.*socket.socket:pytest.PytestUnraisableExceptionWarning")
            )
    newer = [item for item in items if (mark := item.get_closest_marker("since")) is not None and mark.args[0] > SPARK]
    config.hook.pytest_deselected(items=newer)
    items[:] = [item for item in items if item not in newer]


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    if "killing" in sys.modules and (killed := len(sys.modules["killing"].KILLED)):
        failed = len(terminalreporter.getreports("failed"))
        exact = f"{failed} tests FAILED" if failed else "all arrived once"
        terminalreporter.write_line(f"Spark {pyspark.__version__}: {killed} processes killed, {exact}")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session on two threads; started once, and ended with its JVM and its files."""
    warehouse = tmp_path_factory.mktemp("warehouse")
    yield penstock.spark.session("penstock-tests", master="local[2]", spark_sql_warehouse_dir=warehouse, **TINY_DATA)
    penstock.spark.stop()


@pytest.fixture(scope="session")
def emulator() -> Iterator[Emulator]:
    """An S3 emulator; every test has buckets of its own in it."""
    running = Emulator()
    yield running
    running.stop()


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Where the journal under test is."""
    return str(tmp_path / "shop.db")


@pytest.fixture
def journal(url: str) -> Iterator[penstock.Journal]:
    with penstock.open(url, durability="process") as journal:
        yield journal


@pytest.fixture
def served(journal: penstock.Journal) -> Iterator[Served]:
    """The journal at a server that knows `TOKENS`."""
    with serving(journal, tokens=TOKENS, token=WRITE) as served:
        yield served


@pytest.fixture(params=["file", "served"])
def place(request: pytest.FixtureRequest, url: str) -> dict[str, str]:
    """Options that name the journal: as its file, and at a server."""
    if request.param == "file":
        return {"url": url}
    return {"url": request.getfixturevalue("served").url, "token": WRITE}
