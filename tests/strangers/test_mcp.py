"""The event store on the SDK mcp 2.3.0, with its own server and client. The SDK has no suite for event stores."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvicorn
from mcp import Client
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.streamable_http import EventMessage
from mcp_types import JSONRPCNotification, JSONRPCResponse
from starlette.applications import Starlette
from starlette.routing import Mount

import penstock
from penstock.integrations.mcp import PenstockEventStore, PenstockSessions


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[penstock.Journal]:
    with penstock.open(tmp_path / "mcp.db") as opened:
        yield opened


def said(number: int) -> JSONRPCResponse:
    return JSONRPCResponse(jsonrpc="2.0", id=number, result={"n": number, "none": None, "text": "ä"})


async def replayed(store: PenstockEventStore, last: str) -> tuple[str | None, list[tuple[str | None, object]]]:
    found: list[tuple[str | None, object]] = []

    async def send(message: EventMessage) -> None:
        found.append((message.event_id, message.message))

    return await store.replay_events_after(last, send), found


def test_what_came_after_an_event_of_its_stream_is_replayed(journal: penstock.Journal) -> None:
    async def talk() -> None:
        store = PenstockEventStore(journal)
        first = await store.store_event("1", None)
        second = await store.store_event("1", said(1))
        await store.store_event("2", said(2))
        note = JSONRPCNotification(jsonrpc="2.0", method="notifications/progress", params={"progress": 1})
        third = await store.store_event("1", note)
        assert await replayed(store, first) == ("1", [(second, said(1)), (third, note)])
        assert await replayed(store, second) == ("1", [(third, note)])
        assert await replayed(store, third) == ("1", [])
        for unknown in ("", "-1", "x", "9" * 30, "999", "١"):
            assert await replayed(store, unknown) == (None, [])

    asyncio.run(talk())


def test_sessions_do_not_see_each_other_though_their_streams_have_one_name(journal: penstock.Journal) -> None:
    async def talk() -> None:
        ours, theirs = PenstockEventStore(journal), PenstockEventStore(journal)
        begin = await ours.store_event("1", None)
        other = await theirs.store_event("1", said(2))
        mine = await ours.store_event("1" * 2000, said(3))
        assert await replayed(ours, begin) == ("1", [])
        assert await replayed(ours, other) == (None, [])
        assert await replayed(ours, mine) == ("1" * 2000, [])

    asyncio.run(talk())


def test_a_named_store_goes_on_after_reopening(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "mcp.db") as journal:
        first = asyncio.run(PenstockEventStore(journal, session="s").store_event("1", None))
        asyncio.run(PenstockEventStore(journal, session="s").store_event("1", said(1)))
        assert journal.topic("mcp").settings.max_age == 3600
    with penstock.open(tmp_path / "mcp.db") as journal:
        assert asyncio.run(replayed(PenstockEventStore(journal, session="s"), first)) == ("1", [("2", said(1))])


server = MCPServer("shop")


@server.tool()
async def slow(ctx: Context, text: str) -> str:
    """Breaks its own connection, and answers afterwards."""
    await ctx.close_sse_stream()
    return f"{text}!"


@asynccontextmanager
async def serving(sessions: PenstockSessions) -> AsyncIterator[str]:
    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with sessions.run():
            yield

    app = Starlette(routes=[Mount("/mcp", app=sessions.handle_request)], lifespan=lifespan)
    running = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", ws="none"))
    task = asyncio.create_task(running.serve())
    while not running.started:
        await asyncio.sleep(0.01)
    port = running.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}/mcp/"
    finally:
        running.should_exit = True
        await task


def test_a_client_whose_connection_broke_gets_the_answer(journal: penstock.Journal) -> None:
    async def talk() -> None:
        sessions = PenstockSessions(server._lowlevel_server, journal, retry_interval=50)
        async with serving(sessions) as url:

            async def ask(text: str) -> str:
                async with Client(url, mode="legacy") as client:
                    return (await client.call_tool("slow", {"text": text})).content[0].text

            answers = await asyncio.gather(*(ask(f"order {n}") for n in range(3)))
        assert answers == [f"order {n}!" for n in range(3)]

    asyncio.run(talk())
    assert len({event.key.partition("/")[0] for event in journal.topic("mcp").read()}) == 3


def test_a_manager_with_a_store_of_its_own_is_refused(journal: penstock.Journal) -> None:
    with pytest.raises(penstock.errors.ConfigError, match="leave event_store= out"):
        PenstockSessions(server._lowlevel_server, journal, event_store=PenstockEventStore(journal))
