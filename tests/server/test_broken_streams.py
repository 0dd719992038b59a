"""Followers whose stream is broken, foreign or at an end: transport errors are retried, every other is the reader's."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import msgspec
import pytest

import penstock
from penstock import Draft, Event
from penstock.api import local
from penstock.core.journal import keys
from penstock.core.journal.blocks import decode_wire, encode_block
from penstock.core.journal.catalog import load_record
from penstock.core.journal.description import Pressure
from penstock.core.protocol.topics import JournalDocument
from penstock.errors import Corrupt, StorageError
from penstock.remote.backend import RemoteJournal
from server.serving import Served
from waiting import DEADLINE, eventually

ABOUT = msgspec.json.encode(
    JournalDocument("memory", None, 0, "disk", False, [], [], 1, version="1", id="id", pressure=Pressure(0, 1))
)
WHOLE = (
    b'id: 1\ndata: {"topic":"t","seq":1,"id":"0192d4e0-7a2b-7cc3-98c4-dc0c0c07398f","kind":"placed","payload":5,'
    b'"occurred_at":"2026-01-01T00:00:00Z","recorded_at":"2026-01-01T00:00:00Z","correlation_id":"c"}\n\n'
)


class Streaming(BaseHTTPRequestHandler):
    """A server that is none of ours: it describes a journal, and answers followers with one stream after the other."""

    streams: ClassVar[list[bytes]]
    asked: ClassVar[int]
    url: ClassVar[str]

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        follows = not self.path.endswith("/v1")
        body = ABOUT
        if follows:
            body = self.streams[min(self.asked, len(self.streams) - 1)]
            type(self).asked += 1
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream" if follows else "application/json")
        if not follows:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)  # a stream ends with its connection, wherever that is cut

    do_POST = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


@pytest.fixture
def foreign() -> Iterator[type[Streaming]]:
    class Answering(Streaming):
        streams: ClassVar[list[bytes]] = []
        asked: ClassVar[int] = 0

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
    Answering.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.005,), daemon=True)
    thread.start()
    yield Answering
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize(
    "frame",
    [
        b'data: {"seq": 1,\n\n',
        b'data: {"seq": 1}\n\n',
        b"data: \xff\n\n",
        b"data: " + b"[" * 5_000 + b"\n\n",
        b"id: one\n\n",
        b'event: passed\ndata: {"t": "one"}\n\n',
        b"event: problem\ndata: 5\n\n",
    ],
)
@pytest.mark.parametrize("several", [False, True], ids=["a topic", "several topics"])
def test_a_frame_that_is_no_event_is_an_error_and_not_asked_for_again(
    foreign: type[Streaming], frame: bytes, several: bool
) -> None:
    foreign.streams = [frame]
    with RemoteJournal(foreign.url) as journal:
        events = journal.subscribe(["t"]) if several else journal.topic("t").subscribe()
        with events, pytest.raises(StorageError, match="not as a penstock server does") as caught:
            events.next(DEADLINE)
    assert not caught.value.retryable and foreign.asked == 1


def test_a_stream_that_ends_amid_a_frame_is_asked_for_again(foreign: type[Streaming]) -> None:
    foreign.streams = [b"", WHOLE[:20], WHOLE[:60], WHOLE]
    with RemoteJournal(foreign.url) as journal, journal.topic("t").subscribe() as events:
        found = events.next(DEADLINE)
    assert found is not None and (found.seq, found.payload) == (1, 5)
    assert foreign.asked >= 4


def test_a_failure_that_no_code_expected_reaches_the_reader(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that reads a stream must not end, nor go on for ever, without a word."""
    served.journal.topic("t").append("placed")

    def failing(document: object) -> Event:
        raise TypeError("a bug")

    monkeypatch.setattr("penstock.remote.subscription.event_of", failing)
    with penstock.open(served.url) as remote, remote.topic("t").subscribe() as events:
        eventually(lambda: _raised(events) is not None)
        assert isinstance(_raised(events), TypeError)


def _raised(events: penstock.Subscription) -> Exception | None:
    try:
        events.ready()
    except Exception as error:
        return error
    return None


# ── damage amid what is followed ─────────────────────────────────────────────────────────────────────────────────────
def poison(journal: penstock.Journal, topic: str, block: int) -> None:
    """Gives one of a topic's blocks contents that are wrong, in a frame that is right."""
    engine = local(journal, "a test")._engine
    with engine.read() as snap:
        record = load_record(snap, topic)
        assert record is not None
        key, value = list(snap.scan(*keys.block_range(record.topic_id)))[block]
    wire = decode_wire(value[:-4])
    wire.lengths = 1 << 40
    with engine.write() as tx:
        tx.put(key, encode_block(wire))


@pytest.mark.parametrize("several", [False, True], ids=["a topic", "several topics"])
def test_a_follower_is_told_of_damage_after_what_lies_before_it(served: Served, several: bool) -> None:
    topic = served.journal.topic("t")
    for number in range(4):
        topic.append_many([Draft("placed", number), Draft("placed", number)])
    poison(served.journal, "t", 2)
    with penstock.open(served.url) as remote:
        events = remote.subscribe(["t"]) if several else remote.topic("t").subscribe()
        found: list[int] = []
        with events, pytest.raises(Corrupt, match="topic t"):
            while (event := events.next(DEADLINE)) is not None:
                found.append(event.seq)
    assert several or found == [1, 2, 3, 4]
