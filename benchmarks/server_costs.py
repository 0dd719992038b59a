"""What one request costs the server: appends, pushes, takes and acknowledgements of one message each, over HTTP.

    python -m benchmarks server_costs
    ROUNDS=9 python -m benchmarks server_costs append     # only rows with this word

Server and clients are processes of their own. A cost is the CPU time of the server's process for one event or message, in
turns with the row that it is compared with. The bare server is Starlette on uvicorn with one route, whose handler decodes
the body, awaits `topic.submit` and answers with the receipt; its settings are those of `penstock serve`. Durability is
"process", so that the disk adds nothing. p50, p99 and the longest time are those of a request, as its client sees it.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness import Table, latencies, spread

ROUNDS = 7
SECONDS = 1.0
PAYLOAD = {"x": "y" * 92}
TICK = os.sysconf("SC_CLK_TCK")

BARE = """
import json, sys
import msgspec, penstock, uvicorn
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route
from penstock.server.running import bind

journal = penstock.open(sys.argv[1], durability="process")
topic = journal.topic("t")
class Body(msgspec.Struct):
    kind: str
    payload: msgspec.Raw
read, write = msgspec.json.Decoder(Body).decode, msgspec.json.Encoder().encode

async def append(request):
    body = read(await request.body())
    receipt = await topic.submit(body.kind, msgspec.json.decode(body.payload))
    return Response(write({"id": str(receipt.id), "seq": receipt.seq}), 201, media_type="application/json")

config = uvicorn.Config(Starlette(routes=[Route("/append", append, methods=["POST"])]), log_level="warning",
                        access_log=False, server_header=False, proxy_headers=False, lifespan="on", ws="none")
listening = bind("127.0.0.1", 0)
print(json.dumps({"url": f"http://127.0.0.1:{listening.getsockname()[1]}"}), flush=True)
uvicorn.Server(config).run(sockets=[listening])
"""


class Server(NamedTuple):
    """A server in a process of its own."""

    pid: int
    port: int

    def cpu(self) -> float:
        """Returns the seconds that the process has computed."""
        words = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / TICK


@contextmanager
def started(words: list[str]) -> Iterator[Server]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        yield Server(process.pid, int(json.loads(process.stdout.readline())["url"].rpartition(":")[2]))
    finally:
        process.terminate()
        process.wait()


class Connection:
    """A connection that is kept; one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.held: list[str] = []
        """Tokens of deliveries that a row goes on with."""

    async def post(self, path: str, body: bytes, method: str = "POST") -> bytes:
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        self._writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        status = await self._reader.readline()
        length = 0
        while (line := await self._reader.readline()) != b"\r\n":
            if line.lower().startswith(b"content-length:"):
                length = int(line[15:])
        answer = await self._reader.readexactly(length)
        assert status.split()[1] in (b"200", b"201"), answer
        return answer

    def close(self) -> None:
        self._writer.close()


APPENDED = json.dumps({"kind": "k", "payload": PAYLOAD}).encode()
PUSHED = json.dumps({"payload": PAYLOAD}).encode()


async def append(connection: Connection) -> None:
    await connection.post("/v1/topics/t/events", APPENDED)


async def append_bare(connection: Connection) -> None:
    await connection.post("/append", APPENDED)


async def push(connection: Connection) -> None:
    await connection.post("/v1/queues/q/messages", PUSHED)


async def take_ack(connection: Connection) -> None:
    (taken,) = json.loads(await connection.post("/v1/queues/q/take", b'{"consumer":"c"}'))["deliveries"]
    await connection.post(f"/v1/queues/q/deliveries/{taken['token']}/ack", b"{}")


async def ack_and_take(connection: Connection) -> None:
    path = f"/v1/queues/q/deliveries/{connection.held.pop()}/next" if connection.held else "/v1/queues/q/take"
    (taken,) = json.loads(await connection.post(path, b'{"consumer":"c"}'))["deliveries"]
    connection.held.append(taken["token"])


Work = Callable[[Connection], Awaitable[None]]


async def loaded(server: Server, work: Work, connections: int) -> tuple[float, list[float]]:
    """Does requests for a while; returns the server's CPU time for one, and how long each took."""
    open_ones = [Connection(*await asyncio.open_connection("127.0.0.1", server.port)) for _ in range(connections)]
    times: list[float] = []

    async def client(connection: Connection) -> None:
        while (begun := time.perf_counter()) < until:
            await work(connection)
            times.append(time.perf_counter() - begun)

    before, until = server.cpu(), time.perf_counter() + SECONDS
    await asyncio.gather(*map(client, open_ones))
    used = (server.cpu() - before) / len(times)
    for one in open_ones:
        for token in one.held:
            await one.post(f"/v1/queues/q/deliveries/{token}/ack", b"{}")
        one.close()
    return used, times


def filled(server: Server) -> None:
    """Pushes more messages than a round takes."""

    async def fill() -> None:
        connection = Connection(*await asyncio.open_connection("127.0.0.1", server.port))
        await connection.post("/v1/queues/q", b"{}", "PUT")
        await connection.post("/v1/queues/q/messages", json.dumps({"payloads": [PAYLOAD] * 8000}).encode())
        connection.close()

    asyncio.run(fill())


class Row(NamedTuple):
    """A row: the work, what it is compared with, how many connections ask at once, and the goal."""

    work: Work
    base: Work
    connections: int
    most: float | None = None


ROWS = {
    "append × the bare server, 8 connections": Row(append, append_bare, 8, 1.2),
    "append × the bare server, 1 connection": Row(append, append_bare, 1),
    "push × append, 8 connections": Row(push, append, 8),
    "push × append, 1 connection": Row(push, append, 1),
    "take + ack × append, 8 connections": Row(take_ack, append, 8, 3),
    "take + ack × append, 1 connection": Row(take_ack, append, 1),
    "ack and take the next × append, 8 connections": Row(ack_and_take, append, 8),
}


def main() -> None:
    words = " ".join(sys.argv[1:])
    rounds = int(os.environ.get("ROUNDS", ROUNDS))
    table = Table("server_costs", "What a request costs the server", __doc__ or "", rounds=rounds)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        serve = [sys.executable, "-m", "penstock.cli", "serve", "--create", "--port", "0", "--json"]
        url = f"sqlite:{folder}/served.db?durability=process"
        served = stack.enter_context(started([*serve, "--url", url]))
        bare = stack.enter_context(started([sys.executable, "-c", BARE, f"{folder}/bare.db"]))
        filled(served)
        for name, row in ROWS.items():
            if words not in name:
                continue
            found: list[tuple[float, float]] = []
            times: list[float] = []
            for number in range(rounds + 1):
                used = {}
                for work in (row.work, row.base) if number % 2 else (row.base, row.work):
                    if work in (take_ack, ack_and_take):
                        filled(served)
                    server = bare if work is append_bare else served
                    used[work], each = asyncio.run(loaded(server, work, row.connections))
                    times += each if work is row.work and number else []
                if number:  # the first warms up
                    found.append((used[row.work], used[row.base]))
            ratios = [work / base for work, base in found]
            ratio = statistics.median(ratios)
            mine, theirs = (statistics.median(side) * 1e6 for side in zip(*found, strict=True))
            table.row(
                name,
                f"{ratio:.2f} × ({mine:,.0f} µs of CPU to {theirs:,.0f}); {latencies(times)}",
                "" if row.most is None else f"≤ {row.most} ×",
                None if row.most is None else ratio <= row.most,
                spread=spread(ratios),
            )
    if not words:
        table.save()


if __name__ == "__main__":
    main()
