"""The process in which Spark asks a streaming source for its offsets: pyspark's own, made quiet and prompt.

Spark ends it by hanging up when the query stops, and pyspark prints tracebacks when that finds it in the middle of a
sentence. Here it simply ends; what goes wrong in the source reaches Spark over the socket, as before.

Spark waits ten seconds for it to connect, and then fails the query. pyspark connects when it has imported itself, numpy
and pyarrow, which takes longer on a busy machine. Here the connection comes first.
"""

from __future__ import annotations

import os
import runpy
import socket
from contextlib import suppress


def _serve() -> None:
    path = os.environ.get("PYTHON_WORKER_FACTORY_SOCK_PATH")
    with suppress(BrokenPipeError, ConnectionResetError):
        if path is None:  # a port and a secret: pyspark knows how
            runpy.run_module("pyspark.sql.streaming.python_streaming_source_runner", run_name="__main__")
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.connect(path)
            with sock.makefile("rwb") as connection:
                connection.write(os.getpid().to_bytes(4))  # Spark is told this process's number first
                connection.flush()
                from pyspark.sql.streaming.python_streaming_source_runner import main

                main(connection, connection)  # type: ignore[arg-type]  # a file of bytes in all but its declared type


if __name__ == "__main__":
    _serve()
