"""The process in which Spark asks a streaming source for its offsets: pyspark's own, made quiet.

Spark ends it by hanging up when the query stops, and pyspark prints tracebacks when that finds it in the middle of a
sentence. Here it simply ends; what goes wrong in the source reaches Spark over the socket, as before.
"""

from __future__ import annotations

from contextlib import suppress

from pyspark.sql.streaming.python_streaming_source_runner import main
from pyspark.worker_util import get_sock_file_to_executor

if __name__ == "__main__":
    with suppress(BrokenPipeError, ConnectionResetError), get_sock_file_to_executor(timeout=None) as connection:
        main(connection, connection)
