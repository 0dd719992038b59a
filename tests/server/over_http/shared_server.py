"""One server for all tests of a run, a room for each journal: starting and stopping one per test costs most."""

from __future__ import annotations

import itertools
import threading
import time
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

import penstock
from penstock.server.application import make_app
from penstock.server.running import bind


class SharedServer:
    """Serves any number of journals, each below a path of its own, as an application that mounts them would."""

    def __init__(self) -> None:
        self._rooms: dict[str, ASGIApp] = {}
        self._numbers = itertools.count(1)
        self._listening = bind("127.0.0.1", 0)
        config = uvicorn.Config(self, log_level="warning", access_log=False, lifespan="off", ws="none")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._listening]}, daemon=True, name="shared_server"
        )
        self._thread.start()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        room = scope["path"].split("/", 2)[1]
        await self._rooms[room]({**scope, "root_path": f"/{room}"}, receive, send)

    def move_in(self, journal: penstock.Journal, **options: Any) -> str:
        """Begins to serve a journal and says where."""
        room = str(next(self._numbers))
        self._rooms[room] = make_app(journal, **options)
        return f"http://127.0.0.1:{self._listening.getsockname()[1]}/{room}"

    def move_out(self, url: str) -> None:
        """Ends what is under way for a journal; it may be closed afterwards."""
        service = self._rooms[url.rpartition("/")[2]].state.service  # type: ignore[attr-defined]
        service.stop()
        service.sampler.stop()
        deadline = time.monotonic() + 60
        while service.live.listeners or service.waiting:
            assert time.monotonic() < deadline, "a stream does not end"
            time.sleep(0.002)

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(60)
        assert not self._thread.is_alive()
        self._listening.close()
