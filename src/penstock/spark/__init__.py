"""Spark over penstock: a session that starts quietly and fast, topics as tables and streams, and projections at scale.

    startup/      `session()` and `stop()`: Java, the JVM, settings, Python workers, scratch space
    source        the data source `penstock`: batches, streams, offsets; `rows`: blocks to record batches, filters
    sink          writing: tasks stage blocks, the commit publishes them with a mark; `layout`: rows to blocks
    options       what both are asked for; `journals`, `served`: the journal here, in a bucket, or at a server
    projection/   `project()`, `rebuild()`: entities folded on Spark by the class that also runs in-process
    pipeline/     `flow`, `run()`: a query per flow, restarts, stopping, lag
    buffer        the data source `penstock-buffer`
    sealing       `seal()`: history becomes Parquet, by Spark's tasks where a master is given
    history       `read_topic()`: sealed files by Spark's own reader and the rest by the source, as one frame
    views         `view()`: a temporary view that always shows current data

Nothing here imports pyspark before it is used: without it, the first call says which extra to install. Names are
loaded on first use, because every Python worker imports this package too.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.core.journal.sealed.segments import SealReport
    from penstock.spark.history import read_topic
    from penstock.spark.pipeline.flows import buffer_at, external, flow, into, queue, topic
    from penstock.spark.pipeline.running import run
    from penstock.spark.projection.projecting import project, rebuild
    from penstock.spark.sealing import seal
    from penstock.spark.startup.sessions import session, stop
    from penstock.spark.views import view

__all__ = [
    "SealReport",
    "buffer_at",
    "external",
    "flow",
    "into",
    "project",
    "queue",
    "read_topic",
    "rebuild",
    "run",
    "seal",
    "session",
    "stop",
    "topic",
    "view",
]

_HOMES = {
    "core.journal.sealed.segments": ("SealReport",),
    "spark.history": ("read_topic",),
    "spark.views": ("view",),
    "spark.pipeline.flows": ("buffer_at", "external", "flow", "into", "queue", "topic"),
    "spark.pipeline.running": ("run",),
    "spark.projection.projecting": ("project", "rebuild"),
    "spark.sealing": ("seal",),
    "spark.startup.sessions": ("session", "stop"),
}
"""The modules of the public names, below `penstock`."""


def __getattr__(name: str) -> object:
    home = next((home for home, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"penstock.{home}"), name)
    globals()[name] = value
    return value
