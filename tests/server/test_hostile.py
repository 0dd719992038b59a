"""What clients send that nobody meant to be sent: it gets a sentence, and costs the server little."""

from __future__ import annotations

import http.client
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from starlette.requests import HTTPConnection

import penstock
from penstock.errors import ConfigError
from penstock.server.access import COOKIE, Access
from penstock.server.limits import Limits
from penstock.server.running import make_server
from penstock.server.service import Refused
from server.serving import ADMIN, READ, TOKENS, Answer, Served, serving
from waiting import eventually


# ── misspelt ─────────────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/v1/topics/t/events", {"kind": "k", "paylod": 1}, "no field 'paylod'; did you mean 'payload'?"),
        ("/v1/topics/t/events", [{"kind": "k"}, {"kind": "k", "kye": "a"}], "'kye' at [1]; did you mean 'key'?"),
        ("/v1/append", [{"topic": "t", "kind": "k", "expects": 1}], "did you mean 'expect'?"),
        ("/v1/queues/q/messages", {"payloat": 1}, "did you mean 'payload'?"),
        ("/v1/queues/q/messages", {"messages": [{"kind": "k", "heders": {}}]}, "'heders' at messages[0]"),
        ("/v1/queues/q/take", {"limti": 1}, "did you mean 'limit'?"),
        ("/v1/queues/q/redrive", {"dryrun": True}, "did you mean 'dry_run'?"),
        ("/v1/topics/t/compact", {"trough": 1}, "did you mean 'through'?"),
    ],
)
def test_a_misspelt_field_is_refused_with_the_nearest_name(
    served: Served, journal: penstock.Journal, path: str, body: Any, said: str
) -> None:
    journal.queue("q")
    answer = served.post(path, body)
    assert answer.status == 400 and answer.json["error"] == "ConfigError"
    assert said in answer.json["detail"]
    assert journal.topic("t").latest == 0 and len(journal.queue("q")) == 0


def test_lines_name_the_line_and_settings_and_policies_the_field(served: Served) -> None:
    lines = b'{"kind": "k"}\n{"kind": "k", "hedaers": {}}\n'
    answer = served.ask("POST", "/v1/topics/t/events", lines, headers={"Content-Type": "application/x-ndjson"})
    assert "line 2" in answer.json["detail"] and "'headers'" in answer.json["detail"]
    assert "'max_age'" in served.ask("PATCH", "/v1/topics/t/settings", {"max_ag": 1}).json["detail"]
    assert "'lease'" in served.ask("PUT", "/v1/queues/q", {"leas": 1}).json["detail"]
    nested = served.ask("PUT", "/v1/queues/q", {"retry": {"curv": "fixed"}}).json["detail"]
    assert "'curv' at retry" in nested and "'curve'" in nested


@pytest.mark.parametrize(
    ("path", "query", "said"),
    [
        ("/v1/topics/t/events", {"afer": 1}, "no query parameter 'afer'; did you mean 'after'?"),
        ("/v1/topics/t/live", {"form": 1}, "no query parameter 'form'"),
        ("/v1/queues/q/stats", {"groups": "x"}, "did you mean 'group'?"),
        ("/v1/topics", {"limit": 1}, "takes no query parameters"),
        ("/v1/topics/t/events", {"after": "²"}, "after must be a whole number"),
        ("/v1/topics/t/events", {"limit": "-1"}, "limit must be a whole number"),
        ("/v1/topics/t/events", {"limit": 10_001}, "limit"),
        ("/v1/topics/t/events", {"after": -1}, "after"),
        ("/v1/topics/t/events", {"after": 10**30}, "after"),
        ("/v1/topics/t/events", {"since": "soon"}, "soon"),
        ("/v1/topics/t/events", {"where": "payload >"}, "cannot be read"),
        ("/v1/topics/t/events", {"reverse": "perhaps"}, "reverse is true or false"),
        ("/v1/topics/t/events", {"payload": "text"}, 'payload is "binary" or "string"'),
    ],
)
def test_a_query_parameter_that_does_not_fit_is_refused(
    served: Served, journal: penstock.Journal, path: str, query: dict[str, Any], said: str
) -> None:
    journal.queue("q")
    answer = served.get(path, **query)
    assert (answer.status, answer.json["error"]) == (400, "ConfigError") and said in answer.json["detail"]


def test_an_event_s_document_may_be_sent_as_a_draft(served: Served, journal: penstock.Journal) -> None:
    journal.topic("a").append("k", {"n": 1}, key="x", headers={"h": "v"})
    (shown,) = served.get("/v1/topics/a/events").json["events"]
    assert served.post("/v1/topics/b/events", shown).status == 201
    (copy,) = journal.topic("b").read()
    assert (copy.kind, copy.payload, copy.key, dict(copy.headers)) == ("k", {"n": 1}, "x", {"h": "v"})


# ── what used to be answered with 500 ────────────────────────────────────────────────────────────────────────────────
HUGE = 1e308
DEEP = b'{"kind":"k","payload":' + b"[" * 5_000 + b"]" * 5_000 + b"}"
HAS = "has(" * 900 + "payload.a" + ")" * 900


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v1/topics/t/events/²", None),
        ("GET", "/v1/queues/q/messages/²", None),
        ("GET", "/v1/topics/t/events?limit=²", None),
        ("GET", "/v1/topics/t/events?since=1e308", None),
        ("GET", "/v1/topics/t/events?since=0001-01-01", None),
        ("GET", "/v1/topics/t/position?time=9999-12-31T23:59:59", None),
        ("POST", "/v1/topics/t/events", DEEP),
        ("POST", "/v1/topics/t/events", b"[" + DEEP + b"]"),
        ("POST", "/v1/append", DEEP),
        ("POST", "/v1/queues/q/messages", DEEP),
        ("GET", f"/v1/topics/t/events?where={HAS}", None),
        ("PUT", "/v1/queues/q", {"self": 1}),
        ("PUT", "/v1/queues/q", {"name": "x"}),
        ("PATCH", "/v1/queues/q", {"self": 1}),
        ("PATCH", "/v1/topics/t/settings", {"self": 1}),
        ("PUT", "/v1/queues/r", {"lease": HUGE}),
        ("PUT", "/v1/queues/r", {"retry": HUGE}),
        ("PUT", "/v1/queues/r", {"ttl": HUGE, "dedup_window": HUGE}),
        ("PATCH", "/v1/topics/t/settings", {"max_age": HUGE}),
        ("PATCH", "/v1/topics/t/settings", {"dedup_window": HUGE}),
        ("POST", "/v1/queues/q/take", {"wait": HUGE, "limit": 0}),
        ("POST", "/v1/queues/q/take", {"lease": HUGE}),
        ("POST", "/v1/queues/q/claim", {"min_idle": HUGE}),
        ("POST", "/v1/queues/q/messages", {"payload": 1, "delay": HUGE}),
        ("POST", "/v1/queues/q/messages", {"payload": 1, "not_before": "9999-12-31T23:59:59Z"}),
        ("POST", "/v1/queues/q/schedules", {"name": "s", "interval": HUGE}),
        ("POST", "/v1/queues/q/deliveries/x/nack", {"delay": HUGE}),
        ("POST", "/v1/queues/q/deliveries/x/extend", {"lease": HUGE}),
        ("PUT", "/v1/topics/t/cursors/c", {"position": 1 << 80}),
        ("PUT", "/v1/topics/t/cursors/c", {"time": "1e308"}),
        ("POST", "/v1/topics/t/compact", {"through": 1 << 80}),
        ("POST", "/v1/topics/t/events", {"kind": "k", "expect": 1 << 80, "key": "k"}),
        ("POST", "/v1/topics/t/events", b'{"kind":"k","payload":"\\ud800"}'),
        ("POST", "/v1/topics/t/events", b"\xff\xfe"),
    ],
)
def test_odd_requests_are_answered_and_never_with_500(
    served: Served, journal: penstock.Journal, method: str, path: str, body: Any
) -> None:
    journal.queue("q")
    journal.topic("t").append("k", {"a": 1})
    answer = served.ask(method, path.replace("²", "%C2%B2").replace(" ", "%20"), body)
    assert answer.status < 500, (method, path, answer.data[:300])


# ── forged headers ───────────────────────────────────────────────────────────────────────────────────────────────────
FORGED = {
    "dead-queue": "jobs",
    "dead-attempts": "²",
    "dead-last-delivered-at": "yesterday",
    "dead-seq": "x",
    "dead-group": "",
    "dead-reason": "because",
    "dead-priority": "½",
    "dead-max-attempts": "-1e9",
    "dead-before": "{",
    "dead-failed-attempts": '[{"x":' + "[" * 3000,
}


def test_forged_headers_of_dead_letters_are_shown_as_far_as_they_can_be_read(
    served: Served, journal: penstock.Journal
) -> None:
    journal.queue("jobs.dead")
    journal.queue("jobs", dead_letter="jobs.dead", max_attempts=1)
    journal.queue("jobs.dead").push({"n": 1}, headers=FORGED)
    for name in ("jobs", "jobs.dead"):
        (letter,) = journal.queue(name).dead_letters()
        assert (letter.queue, letter.attempts, letter.at, letter.reason) == ("jobs", 0, None, "because")
        (shown,) = served.get(f"/v1/queues/{name}/dead").json["dead"]
        assert shown["attempts"] == 0 and shown["at"] is None and shown["event"]["headers"] == FORGED
        page = served.ask("GET", f"/queues/{name}", headers={"Accept": "text/html"})
        assert page.status == 200, page.data[:300]
    assert served.post("/v1/queues/jobs/redrive", {}).status == 200


# ── connections that do not say anything ─────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("sent", [b"", b"GET /healthz HT", b"GET /healthz HTTP/1.1\r\nHost: x\r\n"])
def test_a_request_that_does_not_arrive_is_given_up(journal: penstock.Journal, sent: bytes) -> None:
    with serving(journal, limits=Limits(header_timeout=0.3)) as served:
        with socket.create_connection(("127.0.0.1", served.port), 60) as half_open:
            half_open.sendall(sent)
            with suppress(ConnectionResetError):
                assert half_open.recv(100) == b""  # closed, without an answer

        # A whole request before, on the same connection, changes nothing.
        def half_open_after_one() -> bool:
            with socket.create_connection(("127.0.0.1", served.port), 60) as half_open:
                try:
                    half_open.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
                    if not half_open.recv(10_000).startswith(b"HTTP/1.1 200"):
                        return False  # given up before it was read, as on a machine that stood still for as long
                except ConnectionResetError:
                    return False
                with suppress(ConnectionResetError, BrokenPipeError):
                    half_open.sendall(b"GET /hea")
                    while half_open.recv(10_000):
                        pass
                return True

        def alive() -> bool:
            with suppress(OSError, http.client.HTTPException):
                return served.get("/healthz").status == 200
            return False

        eventually(half_open_after_one)
        eventually(alive)


# ── the page's login ─────────────────────────────────────────────────────────────────────────────────────────────────
def log_in(served: Served, token: str) -> Answer:
    headers = {"Content-Type": "application/x-www-form-urlencoded", "Authorization": ""}
    return served.ask("POST", "/login", f"token={token}".encode(), headers=headers)


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        ("/queues/emails?tab=dead&n=1", "/queues/emails?tab=dead&n=1"),
        ("https://elsewhere.example/", "/"),
        ("//elsewhere.example/", "/"),
        ("/\\elsewhere.example/", "/"),
        ("/topics\r\nSet-Cookie: a=b", "/"),
        ("", "/"),
    ],
)
def test_a_login_leads_to_the_page_that_was_asked_for_and_never_to_another_site(
    journal: penstock.Journal, asked: str, wanted: str
) -> None:
    with serving(journal, token=ADMIN, tokens=TOKENS) as served:
        headers = {"Content-Type": "application/x-www-form-urlencoded", "Authorization": ""}
        form = urlencode({"token": ADMIN, "next": asked}).encode()
        answer = served.ask("POST", "/login", form, headers=headers)
        assert (answer.status, answer.headers["Location"]) == (303, wanted)


def test_a_page_that_needs_a_login_is_remembered_through_a_wrong_token(
    journal: penstock.Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.server.pages.routes.WRONG_TOKEN_PAUSE", 0.0)
    with serving(journal, token=ADMIN, tokens=TOKENS) as served:
        page = {"Accept": "text/html", "Authorization": ""}
        asked = served.ask("GET", "/queues/emails?tab=dead", headers=page)
        assert (asked.status, asked.headers["Location"]) == (303, "/login?next=%2Fqueues%2Femails%3Ftab%3Ddead")
        shown = served.ask("GET", asked.headers["Location"], headers=page)
        assert 'name="next" value="/queues/emails?tab=dead"' in shown.data.decode()
        headers = {"Content-Type": "application/x-www-form-urlencoded", "Authorization": ""}
        again = served.ask("POST", "/login", b"token=wrong&next=%2Fqueues%2Femails", headers=headers)
        assert again.status == 403 and 'value="/queues/emails"' in again.data.decode()


def test_wrong_tokens_are_limited_per_address(journal: penstock.Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.server.pages.routes.WRONG_TOKEN_PAUSE", 0.0)
    with serving(journal, token=ADMIN, tokens=TOKENS, limits=Limits(wrong_tokens=3)) as served:
        assert served.get("/v1").status == 200
        assert [log_in(served, "wrong").status for _ in range(9)] == [403] * 9  # one guess, made again
        assert served.ask("GET", "/v1", token="another wrong one").status == 401
        assert log_in(served, "third").status == 403
        for asked in (log_in(served, "fourth"), served.ask("GET", "/v1", token="fifth"), log_in(served, READ)):
            assert asked.status == 429 and int(asked.headers["Retry-After"]) >= 1
        assert served.ask("GET", "/v1/topics", token=READ).status == 429  # right, and it might have been guessed
        assert served.get("/v1").status == 200  # a program that was at work goes on
        assert served.ask("GET", "/healthz", headers={"Authorization": ""}).status == 200


def test_guesses_are_counted_for_each_address_and_forgotten_after_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("penstock.server.access.time.monotonic", lambda: now[0])
    access = Access(TOKENS, wrong_tokens=3)
    for number in range(3):
        assert access.role_from("10.0.0.1", f"wrong {number}") is None
    for token in ("wrong 4", READ):
        with pytest.raises(Refused):
            access.role_from("10.0.0.1", token)
    assert access.role_from("10.0.0.2", READ) == "read"
    now[0] += 61
    assert access.role_from("10.0.0.1", READ) == "read"


def test_an_address_that_only_a_client_claims_to_have_does_not_count(journal: penstock.Journal) -> None:
    """Neither for guesses nor in the audit trail; what a proxy says that the operator named does."""

    def guess(served: Served, claimed: str) -> int:
        return served.ask("GET", "/v1", token=f"wrong for {claimed}", headers={"X-Forwarded-For": claimed}).status

    claims = [f"10.0.0.{n}" for n in range(6)]
    push = {"fields": {"queue": "q", "payload": "1"}}
    journal.queue("q")
    with serving(journal, token=ADMIN, tokens=TOKENS, limits=Limits(wrong_tokens=3)) as served:
        assert served.ask("POST", "/acts/push", push, headers={"X-Forwarded-For": claims[0]}).status == 200
        assert [guess(served, claim) for claim in claims] == [401, 401, 401, 429, 429, 429]
    proxies = ["127.0.0.0/8", "10.9.9.9"]
    with serving(journal, token=ADMIN, tokens=TOKENS, limits=Limits(wrong_tokens=1), proxies=proxies) as served:
        assert served.ask("POST", "/acts/push", push, headers={"X-Forwarded-For": claims[0]}).status == 200
        assert [guess(served, f"{claim}, {claims[0]}, 10.9.9.9") for claim in claims] == [401, *[429] * 5]
        assert guess(served, claims[1]) == 401
    told = [event.payload["address"] for event in journal.topic("penstock.audit").read()]
    assert told == ["127.0.0.1", claims[0]]
    with pytest.raises(ConfigError, match="a proxy is an address or a network"):
        make_server(journal, proxies=["*"])


def test_an_ipv6_network_is_one_guesser() -> None:
    access = Access(TOKENS, wrong_tokens=2)
    for host in ("2001:db8::1", "2001:db8::2:3"):
        assert access.role_from(host, f"wrong for {host}") is None
    with pytest.raises(Refused):
        access.role_from("2001:db8:0:0:9::4", READ)
    for host in ("2001:db8:0:1::1", "::ffff:10.0.0.1", "::ffff:10.0.0.2", "::ffff:10.0.0.3"):
        assert access.role_from(host, f"wrong for {host}") is None


def test_a_token_has_so_many_sessions_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.server.access.MOST_SESSIONS", 3)
    access = Access(TOKENS)

    def role(cookie: str) -> str | None:
        return access.role(HTTPConnection({"type": "http", "headers": [(b"cookie", f"{COOKIE}={cookie}".encode())]}))

    other = access.session(ADMIN, "admin")
    cookies = [access.session(READ, "read") for _ in range(5)]
    assert [role(cookie) for cookie in cookies] == [None, None, "read", "read", "read"]
    assert role(other) == "admin" and role("") is role("x.y") is None


def test_a_cookie_is_worthless_after_logging_out(guarded: Served) -> None:
    cookie = log_in(guarded, ADMIN).headers["Set-Cookie"].partition(";")[0]
    assert cookie.startswith(COOKIE)
    with_cookie = {"Authorization": "", "Cookie": cookie}
    assert guarded.ask("GET", "/v1", headers=with_cookie).status == 200
    other = log_in(guarded, ADMIN).headers["Set-Cookie"].partition(";")[0]
    guarded.ask("POST", "/logout", headers=with_cookie)
    assert guarded.ask("GET", "/v1", headers=with_cookie).status == 401
    assert guarded.ask("GET", "/v1", headers={"Authorization": "", "Cookie": other}).status == 200


# ── memory ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_bodies_and_answers_together_are_bounded(journal: penstock.Journal) -> None:
    journal.topic("big").append_many([penstock.Draft("k", "x" * 200_000) for _ in range(4)])
    with serving(journal, limits=Limits(max_held=400_000)) as served:
        first = served.connect()

        def second_is_refused() -> bool:
            """Of two that come at once either may be the one too many: then the first is sent again."""
            if first.sock is None or select.select([first.sock], [], [], 0)[0]:
                first.close()
                first.putrequest("POST", "/v1/topics/t/events")
                first.putheader("Content-Length", "399999")
                first.putheader("Content-Type", "application/json")
                first.endheaders()
                first.send(b'{"kind":"k","payload":"' + b"x" * 300_000)
            return served.post("/v1/topics/t/events", {"kind": "k", "payload": "y" * 200_000}).status == 503

        eventually(second_is_refused)
        assert served.get("/v1/topics/big/events").json["error"] == "TooBusy"
        assert served.post("/v1/topics/t/events", {"kind": "k"}).status == 201
        first.close()
        eventually(lambda: served.get("/v1/topics/big/events").status == 200)


def test_a_take_and_a_page_end_at_their_bytes(
    served: Served, journal: penstock.Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("core.protocol.operation", "core.local.queues", "core.local.topics"):
        monkeypatch.setattr(f"penstock.{module}.PAGE_BYTES", 10_000)
    queue = journal.queue("q")
    queue.push_many(["x" * 1_000 for _ in range(100)])
    with penstock.open(served.url) as remote:
        taken = remote.queue("q").take_many(100, lease=30)
        assert 10 <= len(taken) <= 64
        assert remote.queue("q").ack_many(taken) == len(taken)
        assert len(list(remote.queue("q"))) == 100 - len(taken)
        assert len(served.get("/v1/topics/q/events").json["events"]) == 10


SERVER = """
import sys, penstock
from penstock.server.running import bind, make_server

with penstock.open(sys.argv[1], durability="process") as journal:
    listening = bind("127.0.0.1", 0)
    print(listening.getsockname()[1], flush=True)
    make_server(journal).run(sockets=[listening])
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[int, int]]:
    """The port and the process of a server in a process of its own."""
    command = [sys.executable, "-c", SERVER, str(tmp_path / "served.db")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline()), process.pid
        finally:
            process.terminate()
            process.wait(60)


def peak(pid: int) -> int:
    """The most memory a process has had, in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024


@pytest.mark.nightly("over-http")
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="asks Linux how much memory a process has had")
def test_a_listener_and_many_large_events_take_little_memory(server: tuple[int, int]) -> None:
    port, pid = server
    events, size = 300, 1_000_000
    heard: list[int] = []
    with penstock.open(f"http://127.0.0.1:{port}") as remote:
        topic = remote.topic("big")
        topic.append("first", "x" * 1000)
        before = peak(pid)

        def listen() -> None:
            with topic.subscribe(buffer=4) as subscription:
                while len(heard) <= events:
                    event = subscription.next(60)
                    assert event is not None
                    heard.append(event.seq)

        listener = threading.Thread(target=listen, daemon=True)
        listener.start()
        for _ in range(events):
            topic.append("big", "x" * size)
        listener.join(300)
        assert heard == list(range(1, events + 2))
    print(f"{events} events of {size:,} bytes: {(peak(pid) - before) >> 20} MiB more")
    # 300 MB went through, which unbounded would be held twice; 32 MB are kept for listeners, some more is on its way.
    assert peak(pid) - before < 200 << 20, f"{(peak(pid) - before) >> 20} MiB"
