from __future__ import annotations

import threading
import time
from typing import Any

import pytest

import penstock
from penstock.core.local.queues import FIRST_TAKEN
from penstock.core.model.take import TakeRequest
from penstock.core.queue.queue import LocalQueue
from penstock.errors import StorageError
from server.serving import Served
from waiting import DEADLINE, eventually


@pytest.fixture
def queue(served: Served, journal: penstock.Journal) -> penstock.Queue:
    made = served.ask("PUT", "/v1/queues/q", {"max_attempts": 2, "dead_letter": "q.dead", "lease": 60})
    assert made.status == 200 and made.json["policy"]["max_attempts"] == 2
    return journal.queue("q")


def take(served: Served, **wish: object) -> list[dict[str, object]]:
    answer = served.post("/v1/queues/q/take", wish)
    assert answer.status == 200, answer.data
    return list(answer.json["deliveries"])


def test_a_queue_is_made_and_its_policy_guarded(served: Served, queue: penstock.Queue) -> None:
    assert served.get("/v1/queues").json == {"queues": ["q"]}
    answer = served.ask("PUT", "/v1/queues/q", {"max_attempts": 5})
    assert (answer.status, answer.json["error"]) == (409, "PolicyMismatch")
    retry = {"curve": "fixed", "delays": [5.0]}
    assert served.ask("PATCH", "/v1/queues/q", {"max_attempts": 5, "retry": retry}).json["retry"]["delays"] == [5.0]
    assert served.ask("PUT", "/v1/queues/q").json["policy"]["max_attempts"] == 5
    assert served.ask("PATCH", "/v1/queues/q", {"color": 1}).status == 400
    assert served.ask("PATCH", "/v1/queues/q", {"retry": {"curve": "wild"}}).status == 400
    assert served.ask("DELETE", "/v1/queues/q").json == {"removed": 0}
    assert served.get("/v1/queues/q").json["error"] == "UnknownQueue"


def test_durations_are_seconds_or_text(served: Served, queue: penstock.Queue) -> None:
    policy = {"lease": "1m30s", "ttl": "7d", "retry": {"curve": "schedule", "delays": ["5s", 300], "cap": "1h"}}
    answer = served.ask("PATCH", "/v1/queues/q", policy)
    assert answer.status == 200, answer.data
    assert (answer.json["lease"], answer.json["ttl"]) == (90, 604_800)
    assert (answer.json["retry"]["delays"], answer.json["retry"]["cap"]) == ([5, 300], 3600)
    assert served.ask("PATCH", "/v1/queues/q", {"retry": "30s"}).json["retry"]["delays"] == [30]
    assert served.ask("PATCH", "/v1/topics/q/settings", {"max_age": "30d"}).json["max_age"] == 2_592_000
    assert served.post("/v1/queues/q/messages", {"payload": 1, "delay": "1h"}).status == 201
    assert queue.stats().delayed == 1
    served.post("/v1/queues/q/messages", {"payload": 2})
    (taken,) = take(served, lease="2h", wait="1ms")
    again = served.post(f"/v1/queues/q/deliveries/{taken['token']}/nack", {"delay": "1d"})
    assert again.json == {"settled": "nack", "outcome": "requeued"}
    made = served.post("/v1/queues/q/schedules", {"name": "tidy", "interval": "1h30m"})
    assert made.json["interval"] == 5400
    refused = served.post("/v1/queues/q/messages", {"payload": 1, "delay": "soon"})
    assert refused.status == 400 and "is no duration" in refused.json["detail"]


def test_a_mistyped_queue_is_not_made(served: Served) -> None:
    for path in ("messages", "take", "redrive", "purge"):
        answer = served.post(f"/v1/queues/typo/{path}", {"payload": 1} if path == "messages" else {})
        assert (answer.status, answer.json["error"]) == (404, "UnknownQueue")
    assert served.get("/v1/queues").json == {"queues": []}


def test_push_one_and_many(served: Served, queue: penstock.Queue) -> None:
    first = served.post(
        "/v1/queues/q/messages", {"payload": {"a": 1}, "kind": "mail", "dedup": "x", "headers": {"h": "v"}}
    )
    assert first.status == 201 and first.json["seq"] == 1
    again = served.post("/v1/queues/q/messages", {"payload": 2, "dedup": "x"})
    assert again.status == 200 and again.json == {**first.json, "duplicate": True}
    many = served.post("/v1/queues/q/messages", {"payloads": [1, None, "x"]})
    assert [one["seq"] for one in many.json["receipts"]] == [2, 3, 4]
    own = [{"kind": "a", "payload": 1, "key": "k"}, {"kind": "b", "payload": 2, "dedup": "y"}]
    assert len(served.post("/v1/queues/q/messages", {"messages": own}).json["receipts"]) == 2
    assert served.post("/v1/queues/q/messages", {"payload": 1, "payloads": [2]}).status == 400
    assert served.post("/v1/queues/q/messages", {"payloads": [1], "dedup": "z"}).status == 400
    assert len(queue) == 6


def test_take_settle_and_stale_tokens(served: Served, queue: penstock.Queue) -> None:
    queue.push_many(range(5))
    first, second, third = take(served, limit=3, consumer="c1")
    assert first["attempt"] == 1 and first["event"]["payload"] == 0  # type: ignore[index]
    token = first["token"]
    shown = served.get(f"/v1/queues/q/deliveries/{token}").json
    assert shown == first
    assert served.post(f"/v1/queues/q/deliveries/{token}/ack").json == {"settled": "ack"}
    answer = served.post(f"/v1/queues/q/deliveries/{token}/ack")
    assert (answer.status, answer.json["error"], answer.json["token"]) == (409, "StaleDelivery", token)
    extended = served.post(f"/v1/queues/q/deliveries/{second['token']}/extend", {"lease": 600}).json
    assert extended["deadline"] > second["deadline"]
    served.post(f"/v1/queues/q/deliveries/{second['token']}/release")
    assert served.post(f"/v1/queues/q/deliveries/{second['token']}/release").status == 200
    served.post(f"/v1/queues/q/deliveries/{third['token']}/nack", {"error": "no", "delay": 0})
    assert served.post("/v1/queues/q/deliveries/nonsense/ack").json["error"] == "StaleDelivery"
    tokens = [one["token"] for one in take(served, limit=10)]
    assert len(tokens) == 4
    answer = served.post("/v1/queues/q/ack", {"tokens": [*tokens, tokens[0], "nonsense"]})
    assert answer.json == {"acknowledged": 4}
    assert take(served) == [] and len(queue) == 0


def test_a_delivery_is_settled_and_the_next_taken_in_one_request(served: Served, queue: penstock.Queue) -> None:
    queue.push_many(range(4))
    (first,) = take(served)
    url = f"/v1/queues/q/deliveries/{first['token']}/next"
    answer = served.post(url, {"limit": 2, "consumer": "c1"})
    assert [one["event"]["payload"] for one in answer.json["deliveries"]] == [1, 2] and len(queue) == 3
    again = served.post(url, {"limit": 2})
    assert (again.status, again.json["error"]) == (409, "StaleDelivery") and queue.stats().ready == 1
    assert served.post(url, {"limit": 0, "lease": -1}).status == 400
    for one in answer.json["deliveries"]:
        (last,) = served.post(f"/v1/queues/q/deliveries/{one['token']}/next", {}).json["deliveries"] or [None]
    assert last is None and queue.stats().in_flight == 1


def test_a_request_that_settles_waits_for_the_next_message(served: Served, queue: penstock.Queue) -> None:
    ticket = queue.push("first", reply=True)
    (first,) = take(served)
    got: list[Any] = []
    url = f"/v1/queues/q/deliveries/{first['token']}/next"
    waiting = threading.Thread(
        daemon=True, target=lambda: got.extend(served.post(url, {"wait": 30, "result": "done"}).json["deliveries"])
    )
    waiting.start()
    assert ticket.result(DEADLINE) == "done"
    queue.push("second")
    waiting.join(DEADLINE)
    assert [one["event"]["payload"] for one in got] == ["second"] and len(queue) == 1


def test_a_delivery_survives_a_new_server(served: Served, queue: penstock.Queue, journal: penstock.Journal) -> None:
    from server.serving import serving

    queue.push("x")
    (delivery,) = take(served)
    with serving(journal) as other:
        assert other.post(f"/v1/queues/q/deliveries/{delivery['token']}/ack").status == 200


def test_a_long_poll_ends_when_a_message_comes(served: Served, queue: penstock.Queue) -> None:
    got: list[object] = []
    waiting = threading.Thread(daemon=True, target=lambda: got.extend(take(served, wait=30)))
    waiting.start()
    eventually(lambda: "server_waiting 1.0" in served.get("/metrics").data.decode())
    begun = time.monotonic()
    queue.push("now")
    waiting.join(60)
    assert len(got) == 1 and time.monotonic() - begun < 20


def test_a_long_poll_ends_empty_when_its_time_is_up(served: Served, queue: penstock.Queue) -> None:
    begun = time.monotonic()
    assert take(served, wait=0.3) == []
    assert time.monotonic() - begun >= 0.3


def test_a_taker_that_goes_away_takes_nothing_along(served: Served, queue: penstock.Queue) -> None:
    connection = served.connect()
    body = b'{"wait": 30}'
    connection.request("POST", "/v1/queues/q/take", body, {"Content-Type": "application/json"})
    eventually(lambda: "server_waiting 1.0" in served.get("/metrics").data.decode())
    connection.close()
    eventually(lambda: "server_waiting 0.0" in served.get("/metrics").data.decode())
    queue.push("for somebody who is there")
    assert len(take(served)) == 1


@pytest.mark.parametrize("act", ["take", "claim"])
def test_a_request_that_fails_half_way_takes_nothing_along(
    served: Served, queue: penstock.Queue, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    """A large request is answered in steps; an error of a later one is the answer."""
    queue.push_many(range(FIRST_TAKEN + 5))
    if act == "claim":
        queue.take_many(FIRST_TAKEN + 5, consumer="before", lease=60)
        time.sleep(0.002)
    calls: list[TakeRequest] = []
    take, claim = LocalQueue.take_async, LocalQueue.claim

    def check(wanted: TakeRequest) -> None:
        calls.append(wanted)
        if len(calls) == 2:
            raise StorageError("the disk is full")

    async def failing_take(self: LocalQueue, wanted: TakeRequest, *given: Any, **options: Any) -> Any:
        check(wanted)
        return await take(self, wanted, *given, **options)

    def failing_claim(self: LocalQueue, wanted: TakeRequest, min_idle: float) -> Any:
        check(wanted)
        return claim(self, wanted, min_idle)

    monkeypatch.setattr(LocalQueue, "take_async", failing_take)
    monkeypatch.setattr(LocalQueue, "claim", failing_claim)
    wish = {"limit": FIRST_TAKEN + 5, "consumer": "half-way"} | ({"min_idle": 0.001} if act == "claim" else {})
    assert served.post(f"/v1/queues/q/{act}", wish).status == 500 and len(calls) == 2
    assert [held.consumer for held in queue.pending() if held.consumer == "half-way"] == []


@pytest.mark.parametrize(
    "wish", [{"limit": -1}, {"limit": 50_000}, {"wait": -1}, {"lease": 0}, {"lease": -1}, {"who": 1}]
)
def test_a_bad_wish_is_refused(served: Served, queue: penstock.Queue, wish: dict[str, object]) -> None:
    answer = served.post("/v1/queues/q/take", wish)
    assert (answer.status, answer.json["error"]) == (400, "ConfigError")


def test_consumers_say_their_machine_and_start_or_are_known_by_their_address(
    served: Served, queue: penstock.Queue
) -> None:
    queue.push_many(range(3))
    take(served, limit=2, consumer="named", host="shop-7", since="2024-05-01T12:00:00Z")
    take(served, limit=1, consumer="plain")
    named, plain = served.get("/v1/queues/q/consumers").json["consumers"]
    assert (named["name"], named["host"], named["since"]) == ("named", "shop-7", "2024-05-01T12:00:00Z")
    assert (named["in_hand"], named["holds"], named["state"]) == (2, [1, 2], "active")
    assert (plain["host"], plain["in_hand"]) == ("127.0.0.1", 1) and plain["since"] == plain["last_seen"]
    assert served.post("/v1/queues/q/leave", {"consumer": "plain"}).json == {"listed": True}
    assert served.post("/v1/queues/q/leave", {"consumer": "plain"}).json == {"listed": False}
    assert [one["name"] for one in served.get("/v1/queues/q/consumers").json["consumers"]] == ["named"]
    assert served.post("/v1/queues/q/take", {"host": ""}).status == 400
    assert served.post("/v1/queues/q/take", {"since": "2024-05-01T12:00:00"}).status == 400


def test_looking_into_a_queue(served: Served, queue: penstock.Queue) -> None:
    queue.push_many(range(5))
    queue.push("later", delay=3600)
    take(served, limit=2, consumer="me", group="default")
    stats = served.get("/v1/queues/q/stats").json
    assert (stats["ready"], stats["in_flight"], stats["delayed"], stats["failed"]) == (3, 2, 1, 0)
    assert stats["oldest_age"] >= 0
    pending = served.get("/v1/queues/q/pending").json["pending"]
    assert [(one["seq"], one["consumer"], one["attempt"]) for one in pending] == [(1, "me", 1), (2, "me", 1)]
    assert [event["seq"] for event in served.get("/v1/queues/q/peek", limit=2).json["events"]] == [3, 4]
    page = served.get("/v1/queues/q/messages", limit=4).json
    assert [one["event"]["seq"] for one in page["messages"]] == [1, 2, 3, 4] and page["next"] == 4
    assert [one["event"]["seq"] for one in served.get("/v1/queues/q/messages", after=4).json["messages"]] == [5, 6]
    assert [one["state"] for one in served.get("/v1/queues/q/messages", state="in_flight").json["messages"]] == [
        "in_flight"
    ] * 2
    assert served.get("/v1/queues/q/messages", state="gone").status == 400
    assert served.post("/v1/queues/q/run-now", {"seqs": [1, 6]}).json == {"made_ready": 1}
    assert served.get("/v1/queues/q/messages/3").json["payload"] == 2
    assert served.get("/v1/queues/q/messages/99").status == 404
    assert [one["name"] for one in served.get("/v1/queues/q/consumers").json["consumers"]] == ["me"]
    assert served.get("/v1/queues/q").json["length"] == 6


def test_dead_letters_are_shown_and_redriven(served: Served, queue: penstock.Queue) -> None:
    queue.push_many(range(4))
    for delivery in queue.take_many(4):
        delivery.nack(error="mailbox full", dead=True)
    dead = served.get("/v1/queues/q/dead").json["dead"]
    assert [(one["queue"], one["error"], one["event"]["payload"]) for one in dead] == [
        ("q", "mailbox full", n) for n in range(4)
    ]
    assert served.post("/v1/queues/q/redrive", {"dry_run": True}).json == {"would_redrive": 4}
    assert served.post("/v1/queues/q/redrive", {"where": "payload = 2"}).json == {"redriven": 1}
    assert served.post("/v1/queues/q/redrive", {"ids": [dead[0]["event"]["id"]]}).json == {"redriven": 1}
    assert served.post("/v1/queues/q.dead/redrive", {"limit": 1}).json == {"redriven": 1}
    assert queue.stats().ready == 3
    assert served.post("/v1/queues/q/purge").json == {"removed": 3}


def test_dead_letters_are_turned_over_by_their_place(served: Served, queue: penstock.Queue) -> None:
    queue.push_many(range(5))
    for delivery in queue.take_many(5):
        delivery.nack(dead=True)
    page = served.get("/v1/queues/q/dead", limit=2).json
    assert page["next"] == "q.dead#2"
    queue.redrive(limit=1)  # what goes meanwhile shifts nothing
    page = served.get("/v1/queues/q/dead", limit=2, after=page["next"]).json
    assert [one["event"]["payload"] for one in page["dead"]] == [2, 3]
    page = served.get("/v1/queues/q/dead", limit=2, after=page["next"]).json
    assert [one["event"]["payload"] for one in page["dead"]] == [4] and page["next"] is None
    answer = served.get("/v1/queues/q/dead", after="nowhere")
    assert answer.status == 400 and "the next of the page before, not 'nowhere'" in answer.json["detail"]
    assert served.get("/v1/queues/q/dead", skip=1).status == 400


def test_failed_messages_are_shown_with_their_error(served: Served, journal: penstock.Journal) -> None:
    queue = journal.queue("plain", max_attempts=1)
    queue.push(1)
    delivery = queue.take()
    assert delivery is not None
    delivery.nack(error="broken")
    (failure,) = served.get("/v1/queues/plain/failed").json["failed"]
    assert (failure["error"], failure["attempts"], failure["event"]["payload"]) == ("broken", 1, 1)


@pytest.mark.parametrize(("path", "missing"), [("q/move", "nowhere"), ("q/redrive", "nowhere"), ("gone/purge", "gone")])
def test_the_queue_that_is_missing_is_the_one_to_make(
    served: Served, queue: penstock.Queue, path: str, missing: str
) -> None:
    answer = served.post(f"/v1/queues/{path}", {"to": "nowhere"} if path != "gone/purge" else None)
    assert answer.status == 404 and answer.json["detail"].endswith(f"or PUT /v1/queues/{missing}")


def test_claim_move_and_groups(served: Served, queue: penstock.Queue, journal: penstock.Journal) -> None:
    queue.push_many(range(3))
    (lost,) = take(served)
    (claimed,) = served.post("/v1/queues/q/claim", {"min_idle": 0}).json["deliveries"]
    assert claimed["attempt"] == 2
    assert served.post(f"/v1/queues/q/deliveries/{lost['token']}/ack").status == 409
    journal.queue("other")
    assert served.post("/v1/queues/q/move", {"to": "other", "limit": 1}).json == {"moved": 1}
    assert served.post("/v1/queues/q/move", {"to": "nobody"}).json["error"] == "UnknownQueue"
    assert "g" in served.post("/v1/queues/q/groups", {"name": "g", "after": "latest"}).json["groups"]
    assert served.post("/v1/queues/q/groups", {"name": "g", "after": "soon"}).status == 400


def test_a_full_queue_says_so(served: Served, journal: penstock.Journal) -> None:
    journal.queue("small", max_size=1)
    assert served.post("/v1/queues/small/messages", {"payload": 1}).status == 201
    answer = served.post("/v1/queues/small/messages", {"payload": 2})
    assert (answer.status, answer.json["error"]) == (429, "QueueFull")


def test_pause_and_resume(served: Served, queue: penstock.Queue) -> None:
    queue.push("x")
    paused = served.post("/v1/queues/q/pause", {}).json
    assert paused["changed"] is True and [one["group"] for one in paused["pauses"]] == [None]
    document = served.get("/v1/queues/q").json
    assert document["pauses"] == paused["pauses"] and document["stats"]["default"]["paused"] is True
    assert take(served) == [] and served.get("/v1").json["paused"] == ["q"]
    assert served.post("/v1/queues/q/pause", {"group": "typo"}).status == 400
    assert served.post("/v1/queues/q/resume", {}).json == {"changed": True, "pauses": []}
    assert served.post("/v1/queues/q/resume", {}).json["changed"] is False
    assert len(take(served)) == 1


def test_a_resume_wakes_a_take_that_waits_at_the_server(served: Served, queue: penstock.Queue) -> None:
    queue.push("x")
    queue.pause()
    found: list[list[dict[str, object]]] = []
    thread = threading.Thread(target=lambda: found.append(take(served, wait=20)))
    thread.start()
    eventually(lambda: bool(queue._backend._signal._waiters))
    served.post("/v1/queues/q/resume", {})
    thread.join(30)
    assert len(found[0]) == 1
