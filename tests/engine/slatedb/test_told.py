"""Readers whom a server tells of changes: sooner than their own looking, and looking again when the server is away."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from object_homes import Home

import penstock
from buffer.emulator import Emulator, free_port
from penstock.engine.slatedb.engine import SlatedbEngine
from penstock.engine.slatedb.reading import follower
from penstock.engine.slatedb.reading.follower import Follower
from penstock.errors import ConfigError, PenstockError
from penstock.local.journal import LocalJournal
from server.serving import READ, TOKENS, serving, wait_until

NEVER = 3600.0


@pytest.fixture
def bucket(emulator: Emulator) -> Iterator[Home]:
    place = Home(f"{emulator.bucket()}/shop", emulator.options)
    yield place
    place.close()


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers look by themselves once an hour: what they see before, somebody told them of."""
    for name in ("FOLLOW_SECONDS", "FOLLOW_IDLE_SECONDS", "FOLLOW_TOLD_SECONDS"):
        monkeypatch.setattr(follower, name, NEVER)


def following(journal: LocalJournal) -> Follower:
    engine = journal._core.engine
    assert isinstance(engine, SlatedbEngine) and engine._follower is not None
    return engine._follower


@pytest.mark.usefixtures("slow")
def test_a_reader_that_is_told_sees_what_it_would_not_look_for(bucket: Home) -> None:
    writer = bucket.open()
    writer.topic("t").append("k", 0)
    with serving(writer, tokens=TOKENS) as served:
        blind = bucket.open(read_only=True)
        reader = bucket.open(read_only=True, told_by=served.url, token=READ)
        wait_until(lambda: following(reader).told)
        with reader.topic("t").subscribe() as events:
            for number in range(4):
                event = events.next(60)
                assert event is not None and event.payload == number
                writer.topic("t").append("k", number + 1)
        wait_until(lambda: reader.topic("t").latest == 5)
        wait_until(lambda: sum(batch.num_rows for batch in reader.topic("t").read_arrow()) == 5)
        following(blind).refresh()
        assert blind.topic("t").latest == 1, "one whom nobody tells has not looked since it was opened"


@pytest.mark.usefixtures("slow")
def test_a_server_of_a_reader_tells_on(bucket: Home) -> None:
    """The console of a spare machine follows as fast: `penstock serve --read-only --told-by URL`."""
    writer = bucket.open()
    writer.topic("t").append("k", 0)
    with serving(writer, tokens=TOKENS) as served:
        reader = bucket.open(read_only=True, told_by=served.url, token=READ)
        with (
            serving(reader, tokens=TOKENS) as console,
            penstock.open(console.url, token=READ) as remote,
            remote.topic("t").subscribe() as events,
        ):
            assert events.next(60) is not None
            writer.topic("t").append("k", 1)
            event = events.next(60)
            assert event is not None and event.payload == 1


def test_without_the_server_a_reader_looks_for_itself_and_listens_again_when_it_is_back(bucket: Home) -> None:
    writer = bucket.open()
    writer.topic("t").append("k", 0)
    with serving(writer, tokens=TOKENS) as served:
        reader = bucket.open(read_only=True, told_by=served.url, token=READ)
        wait_until(lambda: following(reader).told)
    wait_until(lambda: not following(reader).told)
    writer.topic("t").append("k", 1)
    wait_until(lambda: reader.topic("t").latest == 2)
    with serving(writer, tokens=TOKENS, reuse=served.port):
        wait_until(lambda: following(reader).told)
        reader.close()


def test_a_server_that_is_not_there_yet_is_no_reason_not_to_read(bucket: Home) -> None:
    writer = bucket.open()
    writer.topic("t").append("k", 0)
    port = free_port()
    reader = bucket.open(read_only=True, told_by=f"http://127.0.0.1:{port}", token=READ)
    assert [event.payload for event in reader.topic("t").read()] == [0]
    assert not following(reader).told
    with serving(writer, tokens=TOKENS, reuse=port):
        wait_until(lambda: following(reader).told)
        reader.close()


def test_a_refused_token_another_journal_and_no_reader_are_errors_that_say_so(folder: Home, tmp_path: Path) -> None:
    writer = folder.open()
    with serving(writer, tokens=TOKENS) as served, penstock.open(tmp_path / "other.db") as other:
        with pytest.raises(PenstockError, match="token"):
            folder.open(read_only=True, told_by=served.url, token="wrong-token-0123456789")
        with pytest.raises(ConfigError, match="read_only=True"):
            folder.open(told_by=served.url, token=READ)
        with pytest.raises(ConfigError, match="told_by is for a journal in an object store"):
            penstock.open(tmp_path / "other.db", read_only=True, told_by=served.url, token=READ)
        with pytest.raises(ConfigError, match="leave told_by out"):
            penstock.open(served.url, read_only=True, told_by=served.url, token=READ)
        with pytest.raises(ConfigError, match="http"):
            folder.open(read_only=True, told_by="journal:8080", token=READ)
        with serving(other, tokens=TOKENS) as elsewhere, pytest.raises(ConfigError, match="another journal"):
            folder.open(read_only=True, told_by=elsewhere.url, token=READ)
    assert writer.topic("t").append("k", 1).seq == 1


def test_a_reader_that_is_told_asks_the_store_less_often_while_nothing_happens(
    bucket: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted in pauses, not in seconds: after a while without news each is as long as it may become."""
    now = time.monotonic()
    writer = bucket.open()
    reader = following(bucket.open(read_only=True))
    writer.close()

    class Clock:
        monotonic = staticmethod(lambda: now)

    monkeypatch.setattr(follower, "time", Clock)
    asked: dict[bool, int] = {}
    for told in (False, True):
        reader.told = told
        for _ in range(20 * 100):  # twenty seconds to come to rest, and a hundred to count in
            now += 0.01
            reader.refresh()
        before = reader.log_checks
        for _ in range(100 * 100):
            now += 0.01
            reader.refresh()
        asked[told] = reader.log_checks - before
    assert asked[False] > 130 and asked[True] <= 51


def said(stream: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(next(line for line in stream if line.startswith(b"data: "))[6:])
    return found


def test_commits_close_together_are_one_word(folder: Home) -> None:
    writer = folder.open()
    with serving(writer, tokens=TOKENS) as served:
        connection = served.connect()
        connection.request("GET", "/v1/changes/live", headers={"Authorization": f"Bearer {READ}"})
        stream = connection.getresponse()
        first = said(stream)
        assert stream.status == 200 and first["id"] == writer.id
        for number in range(50):
            writer.topic("t").append("k", number)
        words = 1
        while said(stream)["changes"] < first["changes"] + 50:
            words += 1
        assert words < 50
        connection.close()
