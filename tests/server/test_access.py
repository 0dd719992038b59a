"""Who may do what, from where; and what never leaves the server."""

from __future__ import annotations

import logging
import statistics
import time

import pytest

import penstock
from penstock.core.observe.workers import gave_up, say_gave_up
from penstock.errors import ConfigError
from penstock.server.access import Access
from penstock.server.running import bind, is_local, make_server, read_tokens
from server.serving import ADMIN, READ, TOKENS, WRITE, Served, serving


def test_no_route_of_the_api_is_left_open(guarded: Served) -> None:
    """Every route there is, asked without a token, answers 401; health alone says that it lives. `test_roles` tries
    every operation with every role."""
    from starlette.routing import Route

    from penstock.server.application import make_app

    asked = 0
    for route in make_app(guarded.journal).routes:
        if not isinstance(route, Route) or route.path == "/healthz" or not route.methods:
            continue
        if getattr(route.endpoint, "open_to_all", False):
            continue
        path = route.path_format.format(**dict.fromkeys(route.param_convertors, "1"))
        for method in route.methods - {"HEAD"}:
            asked += 1
            body = None if method == "GET" else {}
            status = guarded.ask(method, path, body, headers={"Authorization": ""}).status
            assert status == 401 or (status == 303 and not path.startswith("/v1")), (method, path, status)
    assert asked > 45
    assert guarded.ask("GET", "/healthz", headers={"Authorization": ""}).json == {"status": "ok"}


def test_making_a_queue_of_a_topic_with_a_history_needs_the_role_admin(
    guarded: Served, journal: penstock.Journal
) -> None:
    journal.topic("ledger").append("entry", 1)
    for name, policy in (("ledger", {}), ("jobs", {"dead_letter": "ledger"})):
        answer = guarded.ask("PUT", f"/v1/queues/{name}", policy, token=WRITE)
        assert answer.status == 403 and "'ledger' is a topic with a history" in answer.json["detail"]
    assert journal.queues() == []
    assert guarded.ask("PUT", "/v1/queues/ledger", {}).status == 200
    with penstock.open(guarded.url, token=WRITE) as remote, remote.queue("ledger").take() as delivery:  # type: ignore[union-attr]
        assert delivery.payload == 1
    journal.maintain()
    assert len(journal.queue("ledger")) == 0 and [event.payload for event in journal.topic("ledger").read()] == [1]


def test_topics_of_penstock_s_own_are_changed_by_no_token(guarded: Served, journal: penstock.Journal) -> None:
    """But pipelines and workers, wherever they run, say how they do; the newest word of each is kept."""
    audit = journal.topic("penstock.audit")
    audit.append("console.purge", "what was done")
    acts: dict[str, dict[str, str]] = {
        "publish": {"kind": "forged", "payload": "1"},
        "compact": {"through": "1", "force": "yes"},
        "retention": {"max_events": "1"},
        "drop-topic": {"force": "yes"},
    }
    for act, fields in acts.items():
        answer = guarded.post(f"/acts/{act}", {"fields": {"topic": " penstock.audit ", **fields}})
        assert answer.status == 403 and "penstock's own" in answer.json["detail"], act
    assert guarded.post("/acts/make-queue", {"fields": {"queue": "penstock.audit"}}).status == 403
    assert [event.payload for event in audit.read()] == ["what was done"]
    assert b'data-act="seek"' in guarded.get("/topics/penstock.audit?tab=consumers").data
    assert b'"publish"' not in guarded.get("/topics/penstock.audit").data
    assert b'"retention"' not in guarded.get("/topics/penstock.audit?tab=settings").data
    with penstock.open(guarded.url, token=WRITE) as remote:
        for number in range(3):
            say_gave_up(remote, "jobs:default", ValueError(str(number)))
        assert [one.error for one in gave_up(remote)] == ["ValueError: 2"]
    assert journal.topic("penstock.workers").settings.by_key


def test_a_problem_names_the_role_that_is_needed(guarded: Served) -> None:
    answer = guarded.ask("POST", "/v1/queues/q/purge", {}, token=READ)
    assert "admin" in answer.json["detail"] and answer.json["error"] == "Forbidden"
    answer = guarded.ask("GET", "/v1", headers={"Authorization": ""})
    assert answer.headers["WWW-Authenticate"].startswith("Bearer") and answer.json["error"] == "Unauthorized"


def test_tokens_are_compared_in_constant_time() -> None:
    """A wrong first character must not be told from a wrong last one, nor an early token from a late one."""
    access = Access({f"{n:04d}" + "x" * 60: "read" for n in range(50)})
    guesses = ["0000" + "x" * 60, "0049" + "x" * 60, "0000" + "x" * 59 + "y", "y" * 64]
    times: dict[str, list[float]] = {guess: [] for guess in guesses}
    for _ in range(300):
        for guess in guesses:
            begun = time.perf_counter()
            access.role_of_token(guess)
            times[guess].append(time.perf_counter() - begun)
    middles = [statistics.median(values) for values in times.values()]
    assert max(middles) < 2 * min(middles)


@pytest.mark.parametrize("tokens", [{"short": "read"}, {"x" * 20: "king"}, {"ü" * 20: "read"}])
def test_bad_tokens_are_refused(journal: penstock.Journal, tokens: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        Access(tokens)  # type: ignore[arg-type]


def test_an_address_others_can_reach_needs_a_token(journal: penstock.Journal) -> None:
    for host in ("0.0.0.0", "::", "192.168.1.5", "example.com"):
        assert not is_local(host)
        with pytest.raises(ConfigError, match="token"):
            make_server(journal, host=host)
        make_server(journal, host=host, tokens=TOKENS)
    for host in ("127.0.0.1", "localhost", "::1", "127.8.8.8"):
        assert is_local(host)
        make_server(journal, host=host)


def test_a_port_in_use_is_a_sentence() -> None:
    taken = bind("127.0.0.1", 0)
    taken.listen()
    with pytest.raises(ConfigError, match="cannot serve"):
        bind("127.0.0.1", taken.getsockname()[1])
    taken.close()


def test_tokens_are_read_from_lines() -> None:
    text = f"# who may what\nread {READ}\n\nadmin {ADMIN}\n"
    assert read_tokens(text) == {READ: "read", ADMIN: "admin"}
    for bad in ("king abc", "read", "read a b"):
        with pytest.raises(ConfigError, match="line 1"):
            read_tokens(bad)


# ── browsers ─────────────────────────────────────────────────────────────────────────────────────────────────────────
CROSS_SITE = [
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Origin": "http://127.0.0.1:1"},
    {"Origin": "http://[::1"},
]


@pytest.mark.parametrize("headers", CROSS_SITE, ids=str)
def test_another_sites_page_cannot_change_anything(
    served: Served, journal: penstock.Journal, headers: dict[str, str]
) -> None:
    answer = served.ask("POST", "/v1/topics/t/events", {"kind": "k"}, headers=headers)
    assert (answer.status, answer.json["error"]) == (403, "CrossSite")
    assert journal.topics() == []


def test_the_page_itself_and_programs_can(served: Served) -> None:
    own = {"Origin": served.url, "Sec-Fetch-Site": "same-origin"}
    assert served.ask("POST", "/v1/topics/t/events", {"kind": "k"}, headers=own).status == 201
    assert served.post("/v1/topics/t/events", {"kind": "k"}).status == 201


def test_a_site_that_renames_itself_is_not_answered(served: Served) -> None:
    answer = served.ask("GET", "/v1/topics", headers={"Host": "evil.example"})
    assert (answer.status, answer.json["error"]) == (421, "WrongHost")
    for host in (f"localhost:{served.port}", "127.0.0.1", f"[::1]:{served.port}"):
        assert served.ask("GET", "/v1/topics", headers={"Host": host}).status == 200


def test_hosts_can_be_named(journal: penstock.Journal) -> None:
    with serving(journal, hosts=["journal.example"]) as served:
        assert served.ask("GET", "/v1/topics", headers={"Host": "journal.example:8080"}).status == 200
        assert served.ask("GET", "/v1/topics", headers={"Host": "127.0.0.1"}).status == 421


def test_every_answer_has_the_security_headers(guarded: Served) -> None:
    for path in ("/v1/topics", "/nothing", "/", "/healthz"):
        headers = guarded.get(path).headers
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "same-origin"
        assert "Access-Control-Allow-Origin" not in headers


def test_no_credential_appears_in_any_log(guarded: Served, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    guarded.get("/v1/topics")
    guarded.ask("GET", "/v1/nothing", token="wrong-token-abcdefgh")
    guarded.post("/v1/topics/t/events", b"{")
    for token in (ADMIN, "wrong-token-abcdefgh"):
        assert token not in caplog.text


def test_a_forged_session_opens_nothing(guarded: Served) -> None:
    for value in ("admin.9999999999.deadbeef", "admin", "", "admin.9999999999.", "." * 50):
        headers = {"Authorization": "", "Cookie": f"penstock_session={value}"}
        assert guarded.ask("GET", "/v1/topics", headers=headers).status == 401
