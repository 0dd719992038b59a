"""A proxy between a client and a server that cuts connections in the middle, and delays what comes through them."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Self


class CuttingProxy:
    """Passes bytes on between its own port and a server's; the next `cuts` connections end after `after` bytes.

    `of` says which way is counted: what the server answers, or what the client asks.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.cuts = 0
        self.after = 0
        self.of = "answer"
        self.delay = 0.0
        self.cut = 0
        """How many connections were cut."""
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, args=(self._listening,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        _shut(self._listening)
        for one in list(self._open):
            _shut(one)

    @contextmanager
    def away(self) -> Iterator[None]:
        """Ends every connection there is, and refuses those that are made while the block runs."""
        self._close()
        yield
        self._listening = socket.create_server(("127.0.0.1", self.port))
        self.__enter__()

    def cut_next(self, cuts: int, after: int = 0, of: str = "answer") -> None:
        with self._lock:
            self.cuts, self.after, self.of = cuts, after, of

    def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                near, _ = listening.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                near.close()  # the server is not there now
                continue
            self._open |= {near, far}
            for source, sink, way in ((near, far, "request"), (far, near, "answer")):
                threading.Thread(target=self._pass, args=(source, sink, way), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, way: str) -> None:
        passed = 0
        try:
            while data := source.recv(1 << 16):
                if self.delay:
                    time.sleep(self.delay)
                with self._lock:
                    ends = self.cuts > 0 and way == self.of and passed + len(data) > self.after
                    if ends:
                        self.cuts -= 1
                        self.cut += 1
                if ends:
                    sink.sendall(data[: self.after - passed] if self.after > passed else b"")
                    break
                sink.sendall(data)
                passed += len(data)
        except OSError:
            pass
        finally:
            _shut(source)
            _shut(sink)
            self._open -= {source, sink}


def _shut(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
