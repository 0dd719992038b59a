"""The parent process of Spark's Python workers on this machine: pyspark's own, made quiet.

Over Unix sockets, pyspark's daemon prints a traceback for every worker that Spark hangs up on: after `limit`, at the
end of a streaming query, and for each one left idle for a minute. Alarming, and about nothing. Here a worker whose
peer has gone simply ends; what goes wrong in a worker reaches Spark over the socket, as before.
"""

from __future__ import annotations

from typing import Any

from pyspark import daemon

_serve = daemon.worker


def _serve_quietly(sock: Any, authenticated: bool) -> int:
    try:
        return _serve(sock, authenticated)
    except (BrokenPipeError, ConnectionResetError):
        return 1


if __name__ == "__main__":
    daemon.worker = _serve_quietly
    daemon.manager()
