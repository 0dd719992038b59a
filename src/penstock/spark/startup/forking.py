"""The process that Spark's Python processes on this machine are forked from, with everything they need imported.

Spark starts a Python for each kind of question that it asks a data source (seven of them), and one for each streaming
source; each forks workers, which import pyspark, pyarrow and the source: half a second of work each, some twenty times
before the first batch of a pipeline of three flows. Here that is done once, while the JVM starts. `stand_in` is the
program that Spark runs as Python; it hands its input, output and environment to this process, which forks.

What is forked is pyspark's own program, made quiet and quick:

- Over Unix sockets pyspark prints a traceback whenever Spark hangs up on a worker, or on a streaming source: after
  `limit`, at the end of a query, and for each worker left idle for a minute. Here it simply ends; what goes wrong in it
  reaches Spark over the socket, as before.
- After every task, and every question, pyspark collects garbage, and walks all the objects of pyspark, pyarrow and
  numpy each time: some 25 ms, four times in each micro-batch. Here the collector is told to leave them out.

Nothing may have started a thread before a fork: `QUIET` keeps libraries from it.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
from contextlib import suppress
from typing import Any

QUIET = {"OMP_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""The settings that keep numpy's algebra and Arrow's allocator from starting threads when they are imported."""
DAEMON = "pyspark.daemon"
STREAM_SOURCE = "pyspark.sql.streaming.python_streaming_source_runner"
_WORKERS = (
    "lookup_data_sources create_data_source plan_data_source_read write_into_data_source commit_data_source_write"
)
_IMPORTED = (
    *("pyspark.worker", "pyspark.sql.worker.python_streaming_sink_runner"),
    *(f"pyspark.sql.worker.{name}" for name in _WORKERS.split()),
    *("pyspark_penstock", "penstock.spark.sink", "penstock.core.engine.sqlite"),
)


def serve(path: str) -> None:
    """Forks a process for each that asks at a socket, until the input ends with the process that started this."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no process waits for those that are forked
    os.register_at_fork(after_in_child=_draw_anew)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen(64)
        for name in _IMPORTED:
            with suppress(ImportError):  # not in every version of Spark
                importlib.import_module(name)
        _leave_out_modules()
        while True:
            if 0 in select.select([0, listening.fileno()], [], [])[0]:
                return
            asking, _ = listening.accept()
            with asking, suppress(OSError, ValueError):
                message, given, _, _ = socket.recv_fds(asking, 8, 3)
                with asking.makefile("rb") as file:
                    arguments, environ, folder = json.loads(file.read(int.from_bytes(message)))
                if not os.fork():
                    listening.close()
                    _become(asking, given, arguments, environ, folder)
                for descriptor in given:
                    os.close(descriptor)


def _become(
    asking: socket.socket, given: list[int], arguments: list[str], environ: dict[str, str], folder: str
) -> None:
    """Runs a program of pyspark's in the forked process as if it had been started, and reports its end."""
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, descriptor in enumerate(given):
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.environ.clear()
        os.environ.update(environ)
        os.chdir(folder)
        paths = [path for path in environ.get("PYTHONPATH", "").split(os.pathsep) if path and path not in sys.path]
        sys.path[1:1] = paths
        sys.argv = arguments
        _run(arguments[0])
        code = 0
    except SystemExit as exit:
        code = exit.code if isinstance(exit.code, int) else int(exit.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        with suppress(OSError):
            sys.stdout.flush()
            asking.sendall(bytes([code & 0xFF]))
        os._exit(code & 0xFF)


def _run(module: str) -> None:
    if module == DAEMON:
        from pyspark import daemon

        pyspark_worker = daemon.worker

        def worker(sock: Any, authenticated: bool) -> int:
            try:
                code = pyspark_worker(sock, authenticated)
            except (BrokenPipeError, ConnectionResetError):
                return 1
            _leave_out_modules()
            return code

        daemon.worker = worker
        daemon.manager()
    else:
        with suppress(BrokenPipeError, ConnectionResetError):
            runpy.run_module(module, run_name="__main__")


def _draw_anew() -> None:
    """Seeds random numbers anew; otherwise every process would draw the same numbers."""
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()


_modules = 0
"""The number of modules that had been imported when the collector was last told to leave out what there is."""


def _leave_out_modules() -> None:
    """Takes what lives on between tasks, which is mostly imported code, away from the garbage collector."""
    global _modules
    if len(sys.modules) > _modules:
        gc.collect()
        gc.freeze()
        _modules = len(sys.modules)


if __name__ == "__main__":
    serve(sys.argv[1])
