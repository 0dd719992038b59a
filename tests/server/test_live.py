"""Server-sent events: nothing lost, nothing twice, whatever the listener did before."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.server.limits import Limits
from server.serving import Served, serving
from waiting import eventually


class Stream:
    """One listener's connection."""

    def __init__(self, served: Served, path: str, headers: dict[str, str] | None = None) -> None:
        self.connection = served.connect()
        self.connection.request("GET", path, headers={"Accept": "text/event-stream", **(headers or {})})
        self.response: http.client.HTTPResponse = self.connection.getresponse()
        self.last_id: str | None = None

    def events(self) -> Iterator[Any]:
        for line in self.response:
            if line.startswith(b"id: "):
                self.last_id = line[4:].strip().decode()
            elif line.startswith(b"data: "):
                yield json.loads(line[6:])

    def take(self, count: int) -> list[Any]:
        found = []
        for event in self.events():
            found.append(event)
            if len(found) == count:
                break
        return found

    def close(self) -> None:
        self.connection.close()


def test_history_comes_first_and_then_what_is_appended(served: Served, journal: penstock.Journal) -> None:
    topic = journal.topic("t")
    topic.append_many([penstock.Draft("k", n) for n in range(3)])
    with closing(Stream(served, "/v1/topics/t/live")) as stream:
        assert stream.response.headers["Content-Type"].startswith("text/event-stream")
        assert [event["seq"] for event in stream.take(3)] == [1, 2, 3]
        topic.append("k", {"text": "line\nbreak"})
        (event,) = stream.take(1)
        assert event["payload"] == {"text": "line\nbreak"} and stream.last_id == "4"


def test_a_listener_resumes_after_its_last_event(served: Served, journal: penstock.Journal) -> None:
    topic = journal.topic("t")
    topic.append_many([penstock.Draft("k", n) for n in range(5)])
    with closing(Stream(served, "/v1/topics/t/live?after=0", {"Last-Event-ID": "3"})) as stream:
        assert [event["seq"] for event in stream.take(2)] == [4, 5]
    with closing(Stream(served, "/v1/topics/t/live?after=latest")) as stream:
        topic.append("k", "new")
        assert [event["seq"] for event in stream.take(1)] == [6]


def test_a_topic_that_does_not_exist_yet_can_be_followed(served: Served, journal: penstock.Journal) -> None:
    with closing(Stream(served, "/v1/topics/later/live")) as stream:
        journal.topic("later").append("k", 1)
        assert [event["seq"] for event in stream.take(1)] == [1]


def test_filters_apply_to_history_and_to_what_comes(served: Served, journal: penstock.Journal) -> None:
    topic = journal.topic("t")
    for n in range(6):
        topic.append("even" if n % 2 == 0 else "odd", {"n": n}, key=f"k{n % 3}")
    path = "/v1/topics/t/live?kind=even&where=payload.n%20%3E%200"
    with closing(Stream(served, path)) as stream:
        assert [event["payload"]["n"] for event in stream.take(2)] == [2, 4]
        for n in range(6, 12):
            topic.append("even" if n % 2 == 0 else "odd", {"n": n})
        assert [event["payload"]["n"] for event in stream.take(3)] == [6, 8, 10]


def test_many_listeners_each_get_everything_once(served: Served, journal: penstock.Journal) -> None:
    topic = journal.topic("t")
    got: dict[int, list[int]] = {}

    def listen(number: int) -> None:
        with closing(Stream(served, f"/v1/topics/t/live?after={0 if number % 2 else 'latest'}")) as stream:
            ready.release()
            found = []
            for event in stream.events():
                if event["kind"] == "end":
                    break
                found.append(event["seq"])
            got[number] = found

    topic.append_many([penstock.Draft("k", n) for n in range(500)])
    ready = threading.Semaphore(0)
    listeners = [threading.Thread(daemon=True, target=listen, args=(number,)) for number in range(20)]
    for listener in listeners:
        listener.start()
    for _ in listeners:
        ready.acquire()
    writers = [
        threading.Thread(daemon=True, target=lambda: [topic.append("k", n) for n in range(100)] and None)
        for _ in range(4)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    topic.append("end")
    for listener in listeners:
        listener.join(60)
    for number in range(20):
        assert got[number] == list(range(1 if number % 2 else 501, 901))


def test_a_listener_far_behind_reads_the_log(
    journal: penstock.Journal, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is kept in memory may have moved on between two readings of a slow listener."""
    monkeypatch.setattr("penstock.server.api.topics.LiveTopic.__init__.__defaults__", (8,))
    topic = journal.topic("t")
    with closing(Stream(served, "/v1/topics/t/live")) as slow:
        for _ in range(300):
            topic.append("k", "x" * 20_000)
        assert [event["seq"] for event in slow.take(300)] == list(range(1, 301))


def test_trimmed_history_is_an_answer_not_a_silence(served: Served, journal: penstock.Journal) -> None:
    topic = journal.topic("t")
    topic.append_many([penstock.Draft("k", n) for n in range(5)])
    topic.compact(4)
    answer = served.ask("GET", "/v1/topics/t/live", headers={"Last-Event-ID": "2"})
    assert (answer.status, answer.json["error"]) == (410, "PositionTrimmed")
    assert served.ask("GET", "/v1/topics/t/live", headers={"Last-Event-ID": "x"}).status == 400


def test_appends_of_another_process_arrive(tmp_path: Path) -> None:
    here, elsewhere = penstock.open(tmp_path / "t.db"), penstock.open(tmp_path / "t.db")
    with here, elsewhere, serving(here) as served, closing(Stream(served, "/v1/topics/t/live")) as stream:
        elsewhere.topic("t").append("k", "from elsewhere")
        assert stream.take(1)[0]["payload"] == "from elsewhere"


def test_listeners_are_counted_and_bounded(journal: penstock.Journal) -> None:
    with serving(journal, limits=Limits(max_listeners=2)) as served:
        journal.topic("t").append("k")
        streams = [Stream(served, "/v1/topics/t/live") for _ in range(2)]
        for stream in streams:
            stream.take(1)
        answer = served.get("/v1/topics/t/live")
        assert (answer.status, answer.json["error"]) == (503, "TooManyListeners")
        assert answer.headers["Retry-After"]
        for stream in streams:
            stream.close()
        journal.topic("t").append("k")
        eventually(lambda: "server_listeners 0.0" in served.get("/metrics").data.decode())
        with closing(Stream(served, "/v1/topics/t/live")) as again:
            assert len(again.take(2)) == 2


def test_stats_are_followed(served: Served, journal: penstock.Journal) -> None:
    with closing(Stream(served, "/v1/stats/live")) as stream:
        (first,) = stream.take(1)
        assert first["topics"] == {}
        journal.topic("t").append("k")
        for sample in stream.events():
            if sample["topics"].get("t", {}).get("latest") == 1:
                break


def test_streams_end_when_the_server_stops(journal: penstock.Journal) -> None:
    with serving(journal) as served:
        stream = Stream(served, "/v1/topics/t/live")
        journal.topic("t").append("k")
        assert stream.take(1)
    assert list(stream.events()) == []
    stream.close()
