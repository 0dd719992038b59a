"""Spark over penstock: a session that starts quietly and fast, topics as tables and streams, folds at scale.

    startup/      `session()` and `stop()`: Java, the JVM, settings, Python workers, scratch space
    source/       the data source `penstock`: options, filters, ranges of positions, blocks to record batches, streams
    sink/         writing: tasks encode rows as blocks and stage them, the commit publishes them with a mark
    projection/   `project()`: entities folded on Spark by the class that also runs in-process
    pipeline/     `flow`, `run()`: a query per flow, restarts, stopping, lag
    buffer/       the data source `penstock-buffer`
    sealing       `seal()`: history becomes Parquet, by Spark's tasks where a master is given; `lakes`: `lake()`

Nothing here imports pyspark before it is used: without it, the first call says which extra to install. Names are
loaded on first use, because every Python worker imports this package too.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.journal.sealed.report import SealReport
    from penstock.spark.lakes import lake
    from penstock.spark.pipeline.flows import flow
    from penstock.spark.pipeline.places import buffer_at, external, queue, topic
    from penstock.spark.pipeline.running import run
    from penstock.spark.projection.projecting import project
    from penstock.spark.projection.rebuilding import rebuild
    from penstock.spark.sealing import seal
    from penstock.spark.startup.sessions import session, stop

__all__ = [
    "SealReport",
    "buffer_at",
    "external",
    "flow",
    "lake",
    "project",
    "queue",
    "rebuild",
    "run",
    "seal",
    "session",
    "stop",
    "topic",
]

_HOMES = {
    "SealReport": "journal.sealed.report",
    "buffer_at": "spark.pipeline.places",
    "external": "spark.pipeline.places",
    "flow": "spark.pipeline.flows",
    "lake": "spark.lakes",
    "project": "spark.projection.projecting",
    "queue": "spark.pipeline.places",
    "rebuild": "spark.projection.rebuilding",
    "run": "spark.pipeline.running",
    "seal": "spark.sealing",
    "session": "spark.startup.sessions",
    "stop": "spark.startup.sessions",
    "topic": "spark.pipeline.places",
}
"""Where each public name lives, below `penstock`."""


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"penstock.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
