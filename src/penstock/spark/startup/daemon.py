"""The parent process of Spark's Python workers on this machine: pyspark's own, made quiet and quick.

Over Unix sockets, pyspark's daemon prints a traceback for every worker that Spark hangs up on: after `limit`, at the
end of a streaming query, and for each one left idle for a minute. Alarming, and about nothing. Here a worker whose
peer has gone simply ends; what goes wrong in a worker reaches Spark over the socket, as before.

After every task, and after every question that Spark asks a data source, pyspark's daemon makes the worker collect
garbage. That walks all the objects of pyspark, pyarrow and numpy each time: some 25 ms, four times in each micro-batch
from source to sink, for modules that will never be garbage. Here the collector is told to leave them out.
"""

from __future__ import annotations

import gc
import sys
from typing import Any

from pyspark import daemon

_serve = daemon.worker
_modules = 0
"""How many modules had been imported when the collector was last told to leave out what there is."""


def _serve_well(sock: Any, authenticated: bool) -> int:
    try:
        code = _serve(sock, authenticated)
    except (BrokenPipeError, ConnectionResetError):
        return 1
    _leave_out_modules()
    return code


def _leave_out_modules() -> None:
    """Takes what lives on between tasks, which is mostly imported code, away from the garbage collector."""
    global _modules
    if len(sys.modules) > _modules:
        gc.collect()
        gc.freeze()
        _modules = len(sys.modules)


if __name__ == "__main__":
    daemon.worker = _serve_well
    daemon.manager()
