"""`penstock serve` as a process of its own, which a test may kill and start again on the same port."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Self


class ServerProcess:
    """A served journal; `kill` ends it as the kernel does, `start` serves the same store again."""

    def __init__(self, url: str | Path, tokens: str = "", *options: str) -> None:
        self._url = str(url)
        self._tokens = tokens
        self._options = options
        # Held, bound and not listening, for as long as this is used: no other program is given the port meanwhile.
        self._port = socket.socket()
        self._port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._port.bind(("127.0.0.1", 0))
        self.port: int = self._port.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._port.close()

    def start(self) -> None:
        environ = {**os.environ, "PENSTOCK_SERVE_TOKENS": self._tokens}
        command = [sys.executable, "-m", "penstock.cli", "serve", "--create", "--url", self._url]
        command += ["--port", str(self.port), *self._options]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environ)
        deadline = time.monotonic() + 120
        while True:
            assert self._process.poll() is None, "the server did not start"
            assert time.monotonic() < deadline
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                time.sleep(0.02)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def revive(self) -> None:
        """Starts it again if it was killed by another hand."""
        if self._process is not None and self._process.poll() is not None:
            self.start()

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(60)
            self._process = None
