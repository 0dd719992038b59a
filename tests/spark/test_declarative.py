"""The source and the sink in Spark's own declarative pipelines, run by `spark-pipelines` as its users run it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

import penstock
from penstock import Draft
from penstock.spark.startup import java

DEPENDENCIES = Path(sys.prefix) / "declarative"
SPARK = Path(pyspark.__file__).parent

SPEC = """
name: shop
storage: {storage}
libraries:
  - glob:
      include: transformations/**
"""

FLOWS = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()
dp.create_sink("copies", "penstock", {{"url": {url!r}, "topic": "copies"}})


@dp.append_flow(target="copies")
def copy_orders():
    orders = spark.readStream.format("penstock").options(url={url!r}, topic="orders").load()
    return orders.select("kind", "payload")
"""


@pytest.mark.nightly("spark-programs")
def test_topics_are_sources_and_sinks_of_declarative_pipelines(tmp_path: Path) -> None:
    assert DEPENDENCIES.exists(), "scripts/setup.py puts what spark-pipelines needs there: make clean test"
    url = str(tmp_path / "shop.db")
    (tmp_path / "transformations").mkdir()
    (tmp_path / "transformations" / "copies.py").write_text(FLOWS.format(url=url))
    (tmp_path / "spark-pipeline.yml").write_text(SPEC.format(storage=(tmp_path / "storage").as_uri()))
    with penstock.open(url) as journal:
        journal.topic("orders").append_many([Draft("placed", {"n": n}) for n in range(500)])
        done = subprocess.run(
            [SPARK / "bin" / "spark-pipelines", "run", "--spec", str(tmp_path / "spark-pipeline.yml")],
            cwd=tmp_path,
            env={
                **os.environ,
                "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
                "PYTHONPATH": str(DEPENDENCIES),
                "PYSPARK_PYTHON": sys.executable,
                "SPARK_HOME": str(SPARK),
                "SPARK_LOCAL_IP": "127.0.0.1",
                "JAVA_HOME": str(java.home_for_scripts(java.find(), tmp_path)),
            },
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert [event.payload["n"] for event in journal.topic("copies").read()] == list(range(500))
