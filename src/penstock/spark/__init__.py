"""Spark over penstock: a session that starts quietly and fast.

    sessions   `session()` and `stop()`: one JVM per process, and what happens to it
    settings   what the caller asked for, and penstock's defaults around it
    java       which Java runs it
    launch     starting the JVM, directly or by Spark's scripts
    archive    the cached class archive that halves the start; `python -m penstock.spark.warm` makes it now
    scratch    the temporary folder, removed even after a kill
    daemon     the parent of Python workers, made quiet

Nothing here imports pyspark before it is used: without it, the first call says which extra to install. Names are
loaded on first use, because every Python worker imports this package too.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.spark.sessions import session, stop

__all__ = ["session", "stop"]

_HOMES = {"session": "sessions", "stop": "sessions"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
