"""An S3 emulator in a process of its own: `python s3_emulator.py PORT`.

It answers one request after the other. moto compares an e-tag and stores the object in two steps, so side by side two
conditional puts could both win, which S3 itself never allows. Each connection has a thread all the same: a client that
stops in the middle of sending must not keep the others out.
"""

from __future__ import annotations

import io
import logging
import sys
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, run_simple

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment


def one_at_a_time(app: WSGIApplication) -> WSGIApplication:
    """Has requests that have arrived whole answered one after the other."""
    turn = threading.Lock()

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        sent = environ["wsgi.input"]
        length = environ.get("CONTENT_LENGTH")
        body = sent.read(int(length)) if length else sent.read() if environ.get("wsgi.input_terminated") else b""
        environ["wsgi.input"] = io.BytesIO(body)
        with turn:
            return list(app(environ, start_response))

    return answer


def serve(port: int) -> None:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    app = one_at_a_time(DomainDispatcherApplication(create_backend_app))
    run_simple("127.0.0.1", port, app, threaded=True, request_handler=WSGIRequestHandler)


if __name__ == "__main__":
    serve(int(sys.argv[1]))
