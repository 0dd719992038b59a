"""Spark over penstock: a session that starts quietly and fast, topics as tables and streams, folds at scale.

    sessions   `session()` and `stop()`: one JVM per process, and what happens to it
    settings   what the caller asked for, and penstock's defaults around it
    java       which Java runs it
    launch     starting the JVM, directly or by Spark's scripts
    archive    the cached class archive that halves the start; `python -m penstock.spark.warm` makes it now
    scratch    the temporary folder, removed even after a kill
    daemon     the parent of Python workers, made quiet

    source     the data source `penstock`; `stream`: its offsets and cursor; `options`, `ranges`, `filters`, `rows`:
               what is asked for, how it is cut into tasks, what is skipped, how blocks become record batches
    sink       writing: tasks encode rows as blocks (`layout`, `jsontext`, `causes`) and stage them
               (`staging`), the commit publishes them with a mark of the batch
    stores     journals as Spark's processes open them
    projecting `project()`; `fold`: the fold in a task, `follow`: what a stream remembers, `states`: states as
               structs, `shipping`: classes on their way to workers
    sealing    `seal()`: history becomes Parquet; `sealfile`: one file of it; `lakes`: `lake()`, the files and the rest
               as one frame

    flows      pipelines as Python files: `flow`, and how a file is read; `places`: `topic`, `queue`, …
    running    `run()`: a query per flow, restarts, stopping; `graph`: order and checks, `progress`: rates and lag,
               `faults`: why a flow failed, `reaching`: a JVM that is gone, `alone`: one process a pipeline. What
               pipelines report is read without Spark, by `penstock.pipelines`

Nothing here imports pyspark before it is used: without it, the first call says which extra to install. Names are
loaded on first use, because every Python worker imports this package too.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.spark.flows import flow
    from penstock.spark.lakes import lake
    from penstock.spark.places import buffer_at, external, queue, topic
    from penstock.spark.projecting import project
    from penstock.spark.running import run
    from penstock.spark.sealing import SealReport, seal
    from penstock.spark.sessions import session, stop

__all__ = [
    "SealReport",
    "buffer_at",
    "external",
    "flow",
    "lake",
    "project",
    "queue",
    "run",
    "seal",
    "session",
    "stop",
    "topic",
]

_HOMES = {
    "SealReport": "sealing",
    "buffer_at": "places",
    "external": "places",
    "flow": "flows",
    "lake": "lakes",
    "project": "projecting",
    "queue": "places",
    "run": "running",
    "seal": "sealing",
    "session": "sessions",
    "stop": "sessions",
    "topic": "places",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
