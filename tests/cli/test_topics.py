from __future__ import annotations

import io
import json
import re
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import penstock
from cli.commandline import Cli, Start
from penstock.cli import topics
from penstock.core.clock import ManualClock
from server.serving import Served, serving
from waiting import eventually


def test_topics_lists_each_topic_with_its_ends(cli: Cli, orders: str) -> None:
    assert cli("topics", "--json").document == {
        "topic": "orders",
        "events": 10,
        "oldest": 1,
        "latest": 10,
        "newest": cli("topics", "--json").document["newest"],
        "consumers": 0,
    }
    assert "orders" in cli("topics").out
    said = cli("topics", "zzz")
    assert said.out == "" and "no topic's name contains 'zzz'" in said.err


def test_append_takes_a_payload_from_the_command_line(cli: Cli, url: str) -> None:
    said = cli(
        "append",
        "orders",
        '{"total": 9.5}',
        "--kind",
        "placed",
        "--key",
        "7",
        "--scope=eu",
        "--header",
        "trace=a=b",
        "--json",
    )
    assert said.document["seq"] == 1 and said.document["topic"] == "orders"
    with penstock.open(url) as journal:
        event = journal.topic("orders").get(1)
    assert event is not None
    assert (event.kind, event.payload, event.key, event.scope) == ("placed", {"total": 9.5}, "7", "eu")
    assert dict(event.headers) == {"trace": "a=b"}


def test_append_takes_kind_and_payload_as_python_does(cli: Cli) -> None:
    cli("append", "orders", "placed", '{"total": 9.5}', "--key", "7")
    event = cli("read", "orders", "--json").document
    assert (event["kind"], event["payload"], event["key"]) == ("placed", {"total": 9.5}, "7")
    assert "not both" in cli("append", "orders", "placed", "1", "--kind", "paid", code=2).err
    assert "what is 'more' for" in cli("append", "orders", "placed", "1", "more", code=2).err
    assert "KIND PAYLOAD" in cli("append", "orders", "placed", code=2).err
    cli("append", "orders", "noted", "-", input="1\n2\n")
    assert [one["kind"] for one in cli("read", "orders", "--json").documents] == ["placed", "noted", "noted"]


def test_append_and_push_at_a_terminal_say_that_they_read_lines(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.TextIOWrapper):
        def isatty(self) -> bool:
            return True

    for command in ("append", "push"):
        monkeypatch.setattr("sys.stdin", Terminal(io.BytesIO(b"1\n2\n")))
        assert "reading from the keyboard" in cli(command, "t").err
    assert cli("topics", "t", "--json").document["events"] == 4
    assert "keyboard" not in cli("append", "t", input="1\n").err


def test_a_payload_that_is_no_json_is_refused_with_advice(cli: Cli, tmp_path: Path) -> None:
    said = cli("append", "orders", "{total", "--url", str(tmp_path / "new.db"), "--create", code=2)
    assert "--text" in said.err and "Traceback" not in said.err
    assert not (tmp_path / "new.db").exists()
    cli("append", "orders", "{total", "--text")
    assert cli("read", "orders", "--json").document["payload"] == "{total"


def test_dedup_appends_once(cli: Cli) -> None:
    first = cli("append", "t", "1", "--dedup", "a", "--json").document
    second = cli("append", "t", "2", "--dedup", "a", "--json").document
    assert second == {**first, "duplicate": True}
    assert "nothing new" in cli("append", "t", "2", "--dedup", "a").out


def test_expect_refuses_a_stale_writer(cli: Cli) -> None:
    cli("append", "t", "1", "--key", "k")
    said = cli("append", "t", "2", "--key", "k", "--expect", "0", "--json", code=1)
    assert json.loads(said.err)["error"] == "Conflict"


def test_lines_of_standard_input_are_payloads(cli: Cli) -> None:
    lines = "".join(json.dumps({"id": n, "what": f"k{n % 2}"}) + "\n" for n in range(5)) + "\n"
    said = cli("append", "t", "--kind-from", "what", "--key-from", "id", "--batch", "2", "--json", input=lines)
    assert said.document["appended"] == 5
    events = cli("read", "t", "--json").documents
    assert [(event["kind"], event["key"], event["payload"]["id"]) for event in events] == [
        (f"k{n % 2}", str(n), n) for n in range(5)
    ]


def test_a_bad_line_is_named_and_whole_batches_before_it_are_kept(cli: Cli) -> None:
    said = cli("append", "t", "--batch", "2", input='1\n2\n3\n{"a":\n', code=2)
    assert "line 4" in said.err
    assert "3 events" in cli("append", "u", "--file", "-", input="1\n2\n3\n").out
    assert [event["payload"] for event in cli("read", "t", "--json").documents] == [1, 2]


def test_a_file_of_whole_events_round_trips(cli: Cli, orders: str, tmp_path: Path) -> None:
    file = tmp_path / "orders.jsonl"
    file.write_text(cli("read", "orders", "--json").out)
    assert "10 events" in cli("append", "copy", "--file", str(file), "--events").out
    keep = ("kind", "payload", "key")
    copied = [[event[name] for name in keep] for event in cli("read", "copy", "--json").documents]
    assert copied == [[event[name] for name in keep] for event in cli("read", "orders", "--json").documents]


def test_dedup_from_makes_an_import_repeatable(cli: Cli) -> None:
    for expected in ((2, 0), (0, 2)):
        said = cli("append", "t", "--dedup-from", "id", "--json", input='{"id": "a"}\n{"id": "b"}\n').document
        assert (said["appended"], said["duplicates"]) == expected


def test_a_missing_field_is_named(cli: Cli) -> None:
    assert "'id'" in cli("append", "t", "--key-from", "id", input='{"x": 1}\n', code=2).err


def test_read_shows_a_range(cli: Cli, orders: str) -> None:
    def seqs(*words: str) -> list[int]:
        return [event["seq"] for event in cli("read", "orders", "--json", *words).documents]

    assert seqs() == list(range(1, 11))
    assert seqs("--after", "3", "--through", "6") == [4, 5, 6]
    assert seqs("--reverse", "-n", "2") == [10, 9]
    assert seqs("--limit=0") == []
    assert seqs("--kind", "paid") == [2, 4, 6, 8, 10]
    assert seqs("--kind", "paid", "--kind", "placed", "--key", "customer-0") == [3, 6, 9]
    assert seqs("--where", "payload.total > 20") == [9, 10]
    assert seqs("--where", "payload.total > 10", "-n2") == [5, 6]
    assert seqs("--reverse", "--where", "payload.total < 10", "-n1") == [3]
    assert seqs("--since", "1h") == list(range(1, 11))
    assert seqs("--until", "1h") == []


def test_read_lines_are_for_people(cli: Cli, orders: str) -> None:
    line = cli("read", "orders", "-n1").out
    assert line.startswith("#1  ") and "placed" in line and "[customer-1]" in line and '"total":2.5' in line
    assert cli("read", "orders", "-n1", "--payload").out == '{"number":1,"total":2.5}\n'


def test_control_characters_in_data_never_reach_the_terminal(cli: Cli, url: str) -> None:
    with penstock.open(url) as journal:
        journal.topic("t").append("\x1b[31mred", "\x1b]0;title\x07 \u202e", key="a\x1b[2Jb")
    for words in (("read", "t"), ("tail", "t"), ("show", "t", "1")):
        assert "\x1b" not in cli(*words).out and "\x07" not in cli(*words).out


def test_bytes_are_shown_and_carried_as_base64(cli: Cli, url: str) -> None:
    with penstock.open(url) as journal:
        journal.topic("t").append("raw", b"\x00\xffabc")
    assert cli("read", "t", "--json").document["payload"] == "AP9hYmM="
    assert cli("read", "t", "--json").document["binary"] is True
    assert "00 ff 61" in cli("read", "t").out


def test_tail_begins_with_the_newest(cli: Cli, orders: str) -> None:
    def seqs(*words: str) -> list[int]:
        return [event["seq"] for event in cli("tail", "orders", "--json", *words).documents]

    assert seqs("-n", "3") == [8, 9, 10]
    assert seqs("-n", "2", "--where", "kind = 'placed'") == [7, 9]
    assert seqs("--since", "1h") == list(range(1, 11))


@pytest.fixture
def following(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when a command has begun to follow topics: what is there before it looks would be history to it."""
    begun = threading.Event()

    subscribe = penstock.Journal.subscribe

    def follow(*given: Any, **options: Any) -> Any:
        followed = subscribe(*given, **options)
        begun.set()
        return followed

    monkeypatch.setattr(penstock.Journal, "subscribe", follow)
    return begun


def test_tail_follows_what_comes_and_filters_it(cli: Cli, orders: str, url: str, following: threading.Event) -> None:
    def append() -> None:
        assert following.wait(60), "nothing follows"
        with penstock.open(url) as journal:
            for number in range(40):
                journal.topic("orders").append("late" if number % 2 else "other", {"total": number}, key="k")

    writer = threading.Thread(daemon=True, target=append)
    writer.start()
    words = (
        "tail",
        "orders",
        "-f",
        "-n0",
        "--kind",
        "late",
        "--key",
        "k",
        "--where",
        "payload.total > 30",
        "--count",
        "3",
    )
    said = cli(*words, "--json")
    writer.join()
    assert [event["payload"]["total"] for event in said.documents] == [31, 33, 35]


@pytest.fixture
def shops(url: str) -> None:
    clock = ManualClock()
    with penstock.open(url, clock=clock) as journal:
        for number in range(6):
            journal.topic(("shop.east", "shop.west", "other")[number % 3]).append("sold", number)
            clock.advance(1)


def test_tail_of_several_topics_is_in_the_order_of_time(cli: Cli, shops: None) -> None:
    def payloads(*words: str) -> list[int]:
        return [event["payload"] for event in cli("tail", *words, "--json").documents]

    assert payloads("shop.west", "other") == [1, 2, 4, 5]
    assert payloads("shop.*", "-n", "3") == [1, 3, 4]
    assert payloads("shop.*", "other", "shop.east", "--count", "2") == [0, 1]
    assert "shop.east#1" in cli("tail", "shop.*").out and "#1" in cli("tail", "other").out
    assert "no topic's name matches 'zzz*'" in cli("tail", "other", "zzz*", code=3).err
    assert "there is no topic 'zzz'" in cli("tail", "other", "zzz", code=3).err
    assert payloads("--all", "-n", "3") == [3, 4, 5]
    assert "name topics, or --all" in cli("tail", code=2).err


def test_tail_follows_several_topics_and_those_made_later(
    cli: Cli, shops: None, url: str, following: threading.Event
) -> None:
    def append() -> None:
        assert following.wait(60), "nothing follows"
        with penstock.open(url) as journal:
            for name in ("shop.west", "unheard", "shop.north", "plain"):
                journal.topic(name).append("late", name)

    appending = threading.Thread(target=append)
    appending.start()
    said = cli("tail", "shop.*", "plain", "-f", "-n0", "--kind", "late", "--count", "3", "--json")
    appending.join()
    assert sorted(event["payload"] for event in said.documents) == ["plain", "shop.north", "shop.west"]


def append_once_followed(served: Served, topic: penstock.Topic) -> None:
    """Not earlier: what is there before the command looks would be history to it."""
    listeners = re.compile(rb"^penstock_server_listeners [1-9]", re.MULTILINE)
    eventually(lambda: listeners.search(served.get("/metrics").data), "something follows")
    topic.append("late", 1)


def test_tail_follows_a_servers_topics(cli: Cli, shops: None, url: str) -> None:
    with penstock.open(url) as journal, serving(journal) as served:
        appending = threading.Thread(target=append_once_followed, args=(served, journal.topic("shop.north")))
        appending.start()
        said = cli("tail", "shop.*", "-f", "-n1", "--count", "2", "--json", "--url", served.url)
        appending.join()
    assert [event["topic"] for event in said.documents] == ["shop.west", "shop.north"]


def test_show_gives_everything_about_one_event(cli: Cli, orders: str) -> None:
    event = cli("show", "orders", "3", "--json").document
    assert event["seq"] == 3
    said = cli("show", "orders", event["id"]).out
    assert event["id"] in said and '"number": 3' in said and "customer-0" in said
    assert "1 to 10" in cli("show", "orders", "11", code=3).err


def test_a_mistyped_topic_is_not_made_but_suggested(cli: Cli, orders: str) -> None:
    said = cli("read", "ordres", code=3)
    assert "did you mean 'orders'?" in said.err
    assert [topic["topic"] for topic in cli("topics", "--json").documents] == ["orders"]


def test_occurred_at_is_kept(cli: Cli) -> None:
    cli("append", "t", "1", "--occurred-at", "2024-05-01T12:00:00Z")
    assert cli("read", "t", "--json").document["occurred_at"] == "2024-05-01T12:00:00Z"


def test_since_takes_iso_times(cli: Cli, orders: str) -> None:
    future = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    assert cli("read", "orders", "--since", future).out == ""
    assert "no time" in cli("read", "orders", "--since", "yesterdayish", code=2).err


def test_read_says_that_it_stopped_at_its_limit(cli: Cli) -> None:
    cli("append", "many", input="1\n" * 1003)
    said = cli("read", "many")
    assert len(said.out.splitlines()) == 1000 and "--after 1000 goes on" in said.err
    rest = cli("read", "many", "--after", "1000")
    assert len(rest.out.splitlines()) == 3 and rest.err == ""
    newest = cli("read", "many", "--reverse", "-n", "2")
    assert newest.out.startswith("#1003") and "--through 1001 goes on" in newest.err
    assert len(cli("read", "many", "--limit", "none").out.splitlines()) == 1003
    assert cli("read", "many", "-n", "1003").err == ""


def test_sql_shows_a_table_or_lines_of_json_or_csv(cli: Cli, orders: str) -> None:
    query = "select kind, count(*) as events, sum(seq) * 1000 as total, 2.5 as half from orders group by 1 order by 1"
    assert cli("sql", query).out.splitlines() == [
        "kind    events   total  half",
        "paid         5  30,000   2.5",
        "placed       5  25,000   2.5",
    ]
    first, _ = cli("sql", query, "--json").documents
    assert first == {"kind": "paid", "events": 5, "total": 30_000, "half": 2.5}
    assert cli("sql", query, "--csv").out == "kind,events,total,half\npaid,5,30000,2.5\nplaced,5,25000,2.5\n"
    assert "no rows" in cli("sql", "select 1 where false").err


def test_sql_says_what_is_wrong_with_a_query_and_where(cli: Cli, orders: str) -> None:
    assert "there is no topic 'oders'; did you mean 'orders'?" in cli("sql", "from oders", code=3).err
    said = cli("sql", "select kind form orders where key= 'x'", code=2).err.splitlines()
    place = said.index("LINE 1: select kind form orders where key= 'x'")
    assert said[place + 1].strip() == "^" * len("orders")
    assert "usage" in cli("sql", "selec", "--json", code=2).err
    assert "QUERY" in cli("sql", code=2).err.upper()


def test_sql_ends_without_a_word_beside_its_answer(start: Start, url: str) -> None:
    with penstock.open(url) as journal:
        journal.topic("orders").append("placed", {"total": 1})
    out, err = start("sql", "select payload->>'total' as total from orders").communicate(timeout=60)
    assert (out.split(), err) == (["total", "1"], "")


@pytest.mark.parametrize("served", [False, True])
def test_tail_goes_on_in_a_topic_made_anew(
    cli: Cli, orders: str, url: str, monkeypatch: pytest.MonkeyPatch, served: bool
) -> None:
    newest = topics._newest

    def made_anew(*given: Any) -> list[penstock.Event]:
        found = newest(*given)
        journal.drop_topic("orders")
        journal.topic("orders").append_many([penstock.Draft("made anew", number) for number in range(30)])
        return found

    monkeypatch.setattr(topics, "_newest", made_anew)
    with penstock.open(url) as journal, serving(journal) as server:
        words = ("--url", server.url) if served else ()
        said = cli("tail", "orders", "-f", "-n2", "--count", "5", "--json", *words)
    assert [event["seq"] for event in said.documents] == [9, 10, 11, 12, 13]


def test_tail_shows_what_comes_while_it_begins_once(
    cli: Cli, orders: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = topics._newest

    def with_more(*given: Any) -> list[penstock.Event]:
        with penstock.open(url) as journal:
            journal.topic("orders").append("placed", "meanwhile")
        return newest(*given)

    monkeypatch.setattr(topics, "_newest", with_more)
    said = cli("tail", "orders", "-f", "-n2", "--count", "3", "--json")
    assert [event["seq"] for event in said.documents] == [9, 10, 11]
