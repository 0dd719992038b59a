"""A proxy before an emulator that misbehaves on purpose: late, silent, refusing, losing answers."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import urlsplit

Request = tuple[str, str]
"""The method and the path of a request."""


class StoreProxy:
    """Passes HTTP requests on to `endpoint`, one per connection, except where a test says otherwise."""

    def __init__(self, endpoint: str, latency: float = 0.0) -> None:
        parts = urlsplit(endpoint)
        self._host, self._port = parts.hostname, parts.port
        self._suffix = parts.path
        self.latency = latency
        self.counts: Counter[str] = Counter()
        self.bytes_in = self.bytes_out = 0
        self.signers: set[tuple[str, str]] = set()
        """Access keys, with the tokens of their sessions, that requests were signed with."""
        self.refuse: Callable[[str, str], bool] = _never
        """Requests that get 503, and do not reach the store."""
        self.silence: Callable[[str, str], bool] = _never
        """Requests that get no answer, and do not reach the store."""
        self.lose: Callable[[str, str], bool] = _never
        """Requests that reach the store, and whose answers are lost."""
        self.repeat: Callable[[str, str], bool] = _never
        """Requests that reach the store twice; the first answer counts."""
        self.deny = False
        """Every request gets 403."""
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run(started)), daemon=True)
        self._thread.start()
        assert started.wait(30)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}{self._suffix}"

    def cut(self) -> None:
        """Nothing arrives any more, and nobody is told."""
        self.silence = _always

    def heal(self) -> None:
        """Everything passes again."""
        self.refuse = self.silence = self.lose = self.repeat = _never
        self.deny = False

    async def _run(self, started: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        started.set()
        await self._over.wait()
        self._loop.remove_reader(server.sockets[0].fileno())  # a server that is closed drops what is arriving, open
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            for task, writer in self._connections.items():
                task.cancel()
                writer.transport.abort()
            await asyncio.wait(others)
        server.close()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(10)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Notes a connection as it is made: a task that is cancelled before it begins can close nothing."""
        task = self._loop.create_task(self._serve(reader, writer))
        self._connections[task] = writer
        task.add_done_callback(self._connections.pop)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._serve_one(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            await _closed(writer)

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        method, path, _ = lines[0].split(" ", 2)
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        self.counts[method] += 1
        self.bytes_in += len(body)
        key = headers.get("authorization", "").partition("Credential=")[2].partition("/")[0]
        self.signers.add((key, headers.get("x-amz-security-token", "")))
        if self.latency:
            await asyncio.sleep(self.latency)
        if self.silence(method, path):
            while self.silence(method, path):
                await asyncio.sleep(0.02)
            return False
        if self.deny:
            answer = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n"
        elif self.refuse(method, path):
            answer = b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\n\r\n"
        else:
            lost, twice = self.lose(method, path), self.repeat(method, path)
            answer = await self._ask(method, head + body)
            if twice:
                await self._ask(method, head + body)
            if lost:
                return False
        self.bytes_out += len(answer)
        writer.write(answer)
        await writer.drain()
        return True

    async def _ask(self, method: str, request: bytes) -> bytes:
        reader, writer = await asyncio.open_connection(self._host, self._port)
        try:
            writer.write(request)
            await writer.drain()
            head = await reader.readuntil(b"\r\n\r\n")
            size = 0
            chunked = False
            for line in head.decode("latin-1").split("\r\n")[1:]:
                name, _, value = line.partition(":")
                if name.lower() == "content-length":
                    size = int(value)
                chunked |= name.lower() == "transfer-encoding" and "chunked" in value
            if method == "HEAD":
                return head
            if not chunked:
                return head + await reader.readexactly(size)
            body = b""
            while True:
                line = await reader.readuntil(b"\r\n")
                piece = await reader.readexactly(int(line, 16) + 2)
                body += line + piece
                if int(line, 16) == 0:
                    return head + body
        finally:
            await _closed(writer)


async def _closed(writer: asyncio.StreamWriter) -> None:
    """Closes a connection to its end: what the loop leaves open is a warning in another test."""
    writer.close()
    with suppress(ConnectionError, asyncio.CancelledError):
        await writer.wait_closed()


def _never(method: str, path: str) -> bool:
    return False


def _always(method: str, path: str) -> bool:
    return True
