"""A journal as the event store of MCP servers: a client whose connection broke receives the messages that it missed.

    sessions = PenstockSessions(server, journal)              every session with a store of its own
    store = PenstockEventStore(journal)                       one store, for what takes an `event_store`

A message is an event of a topic. Its position is the event id that the client sends back. Its key is made of the store
and the stream. MCP names streams by the ids of requests, and every client counts these ids from the same number. So two
sessions in one store would receive each other's messages.
"""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from typing import Any

import penstock
from penstock.integrations import needed_for

with needed_for("mcp"):
    from mcp.server.streamable_http import EventCallback, EventMessage, EventStore
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
    from mcp_types import JSONRPCMessage, jsonrpc_message_adapter

KEEP_SECONDS = 3600.0
"""The number of seconds that messages are kept, unless the topic has settings already."""


class PenstockEventStore(EventStore):
    """A store of the messages of a session's streams, in a topic of a journal."""

    def __init__(self, journal: penstock.Journal, topic: str = "mcp", *, session: str | None = None) -> None:
        """`session` names the store. Without it, the store gets a new name."""
        self._topic = journal.topic(topic)
        if self._topic.settings.max_age is None:
            self._topic.configure(max_age=KEEP_SECONDS)
        self._session = _digest(session or uuid.uuid4().hex)

    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        """Stores a message durably, and returns the id after which a client requests the next messages."""
        said = None if message is None else message.model_dump(by_alias=True, mode="json", exclude_unset=True)
        receipt = await self._topic.submit(
            "message", {"stream": stream_id, "message": said}, key=f"{self._session}/{_digest(stream_id)}"
        )
        return str(receipt.seq)

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        """Sends the messages of an event's stream that came after it, and returns the stream's id.

        Returns None when the event is no longer there, or belongs to another session.
        """
        missed = await asyncio.to_thread(self._read_after, last_event_id)
        if missed is None:
            return None
        stream_id, events = missed
        for event in events:
            said = event.payload["message"]
            if said is not None:  # a first event that has only an id
                message = jsonrpc_message_adapter.validate_python(said, by_name=False)
                await send_callback(EventMessage(message, str(event.seq)))
        return stream_id

    def _read_after(self, last_event_id: str) -> tuple[str, list[penstock.Event]] | None:
        if not (last_event_id.isascii() and last_event_id.isdigit() and len(last_event_id) <= 18):
            return None
        last = self._topic.get(int(last_event_id))
        if last is None or last.key is None or not last.key.startswith(f"{self._session}/"):
            return None
        return last.payload["stream"], list(self._topic.read(last.seq, key=last.key))


class PenstockSessions(StreamableHTTPSessionManager):
    """A session manager of the SDK that gives every session its own event store, all in one topic."""

    def __init__(self, app: Any, journal: penstock.Journal, topic: str = "mcp", **options: Any) -> None:
        """`options` are the options of StreamableHTTPSessionManager."""
        self._journal = journal
        self._topic_name = topic
        super().__init__(app, **options)

    @property
    def event_store(self) -> EventStore | None:
        """A new store for each access: the manager asks once for each session."""
        return PenstockEventStore(self._journal, self._topic_name)

    @event_store.setter
    def event_store(self, given: EventStore | None) -> None:
        if given is not None:
            raise penstock.errors.ConfigError("PenstockSessions brings its event stores: leave event_store= out")


def _digest(name: str) -> str:
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
