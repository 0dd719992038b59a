"""One real, local Spark session for every test that asks for `spark`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

import penstock.spark
from buffer.emulator import Emulator

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session on two threads, as users get it; started once, and ended with its JVM and its files."""
    warehouse = tmp_path_factory.mktemp("warehouse")
    yield penstock.spark.session("penstock-tests", master="local[2]", spark_sql_warehouse_dir=warehouse)
    penstock.spark.stop()


@pytest.fixture(scope="module")
def emulator() -> Iterator[Emulator]:
    """An S3 emulator, of the module's own."""
    running = Emulator()
    yield running
    running.stop()
