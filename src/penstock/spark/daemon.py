"""The parent process of Spark's Python workers on this machine: pyspark's own, made quiet.

When a streaming query ends, Spark closes the sockets of its Python helpers, and pyspark's daemon prints a traceback
for each: alarming, and about nothing. Here a worker whose peer has gone simply ends.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from pyspark import daemon

_serve = daemon.worker


def _serve_quietly(sock: Any, authenticated: bool) -> int:
    try:
        return _serve(sock, authenticated)
    except (BrokenPipeError, ConnectionResetError):
        return 1


def hush() -> None:
    """Silences the process of a stream reader that has nothing left to do: call it at the end of `stop()`.

    Spark runs stream readers under pyspark's own daemon, whichever is configured. There the same traceback follows
    `stop()`; errors of the reader itself have gone to Spark by then, over the socket.
    """
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is not None and spec.name == daemon.__name__:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stderr.fileno())
        os.close(nowhere)


if __name__ == "__main__":
    daemon.worker = _serve_quietly
    daemon.manager()
