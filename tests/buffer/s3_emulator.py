"""An S3 emulator in a process of its own: `python s3_emulator.py PORT`.

One thread serves one request after the other. moto compares an e-tag and stores the object in two steps, so with
threads two conditional puts could both win, which S3 itself never allows.
"""

from __future__ import annotations

import logging
import sys

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, run_simple


def serve(port: int) -> None:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    app = DomainDispatcherApplication(create_backend_app)
    run_simple("127.0.0.1", port, app, threaded=False, request_handler=WSGIRequestHandler)


if __name__ == "__main__":
    serve(int(sys.argv[1]))
