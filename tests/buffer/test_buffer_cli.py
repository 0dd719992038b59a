"""`penstock buffer …`: what each command prints, and what it does to the buffer."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock.buffer import Metadata, Producer
from penstock.cli.main import run as run_penstock
from penstock.objects.store import open_store
from waiting import eventually

from .conftest import Buffer

SCRIPT = [sys.executable, "-m", "penstock.cli", "buffer"]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/buffer"


@pytest.fixture
def buffer(url: str) -> Buffer:
    return Buffer(open_store(url))


class Outcome:
    def __init__(self, out: bytes, err: bytes) -> None:
        self.stdout_bytes, self.stdout, self.stderr = out, out.decode("utf-8", "replace"), err.decode()


def run(*words: str, input: bytes = b"", code: int = 0) -> Outcome:
    with CliRunner().isolation(input) as (out, err, _):
        got = run_penstock(["buffer", *words])
        sys.stdout.flush()
        sys.stderr.flush()
        outcome = Outcome(out.getvalue(), err.getvalue())
    assert got == code, outcome.stderr
    return outcome


def test_dump_prints_the_manifest_as_json(buffer: Buffer, url: str):
    buffer.enqueue("ingest/x.batch", [b"a"], (Metadata(0, -5, b"\xff"),))
    buffer.consumer()
    assert json.loads(run("dump", url).stdout) == {
        "version": 1,
        "epoch": 1,
        "next_sequence": 1,
        "entries": [
            {
                "sequence": 0,
                "location": "ingest/x.batch",
                "metadata": [
                    {"start_index": 0, "ingestion_time_ms": -5, "payload": base64.b64encode(b"\xff").decode()}
                ],
            }
        ],
    }


def test_dump_of_nothing_is_an_empty_manifest(buffer: Buffer, url: str):
    assert json.loads(run("dump", url).stdout) == {"version": 1, "epoch": 0, "next_sequence": 0, "entries": []}


@pytest.mark.parametrize("words", [["dump"], ["status"], ["gc"], ["consume", "--peek"]])
def test_looking_at_a_directory_that_is_not_there_does_not_make_it(url: str, tmp_path: Path, words: list[str]):
    assert "no such directory" in run(*words, url, code=1).stderr
    assert list(tmp_path.iterdir()) == []


def test_status_tells_an_empty_queue_from_one_that_never_was(buffer: Buffer, url: str):
    assert "no such object" in run("status", url).stdout
    run("produce", url, input=b"x\n")
    run("consume", url)
    assert "no such object" not in run("status", url).stdout


@pytest.mark.parametrize("command", ["status", "dump", "consume", "gc"])
def test_a_damaged_manifest_is_named(url: str, command: str):
    run("produce", url, input=b"a")
    open_store(url).put("ingest/manifest", b"short")
    assert "(file ingest/manifest)" in run(command, url, code=1).stderr


def test_what_produce_reads_consume_writes(url: str):
    lines = b"".join(b"line %d\n" % n for n in range(3000))
    produced = run("produce", url, "--compression", "zstd", input=lines)
    assert "3000 entries" in produced.stderr
    assert run("consume", url).stdout_bytes == lines
    assert run("consume", url).stdout_bytes == b""


def test_entries_with_newlines_travel_between_zero_bytes(url: str):
    run("produce", url, "--null", input=b"one\ntwo\0three\0last")
    assert run("consume", url, "-0").stdout_bytes == b"one\ntwo\0three\0last\0"


def test_metadata_travels_with_what_is_produced(url: str):
    run("produce", url, "--metadata", "from a shell", input=b"x\n")
    (entry,) = json.loads(run("dump", url).stdout)["entries"]
    assert base64.b64decode(entry["metadata"][0]["payload"]) == b"from a shell"


def test_metadata_that_is_no_text_travels_as_it_was_typed(url: str):
    run("produce", url, "--metadata", os.fsdecode(b"\xff \xe2\x98\x83"), input=b"x\n")
    (entry,) = json.loads(run("dump", url).stdout)["entries"]
    assert base64.b64decode(entry["metadata"][0]["payload"]) == b"\xff \xe2\x98\x83"


def test_empty_lines_are_entries_and_a_missing_last_newline_is_not_missed(url: str):
    assert "4 entries" in run("produce", url, input="\nünï ☃\n\nlast".encode()).stderr
    assert run("consume", url).stdout_bytes == "\nünï ☃\n\nlast\n".encode()


def test_an_entry_of_many_reads_arrives_whole(url: str):
    large = os.urandom(5 << 20).replace(b"\n", b"_")
    run("produce", url, input=b"a\n" + large + b"\nb\n")
    assert run("consume", url).stdout_bytes == b"a\n" + large + b"\nb\n"


def test_a_pipe_that_pauses_holds_no_entry_back(buffer: Buffer, url: str):
    with subprocess.Popen([*SCRIPT, "produce", url], stdin=subprocess.PIPE) as producer:
        producer.stdin.write(b"one\ntwo\nthr")
        producer.stdin.flush()
        eventually(lambda: run("consume", url, "--peek").stdout_bytes == b"one\ntwo\n")
        producer.stdin.write(b"ee\n")
        producer.stdin.close()
        assert producer.wait(30) == 0
    assert run("consume", url).stdout_bytes == b"one\ntwo\nthree\n"


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_what_a_closed_pipe_did_not_take_is_not_acknowledged(buffer: Buffer, url: str, unbuffered: str):
    buffer.enqueue("ingest/x.batch", [b"x" * 1000] * 3000)
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with subprocess.Popen(
        [*SCRIPT, "consume", url],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        bufsize=0,
    ) as consumer:
        assert consumer.stdout.read(10) == b"x" * 10
        consumer.stdout.close()
        assert consumer.wait(60) != 0
    assert buffer.length() == 1


def test_a_peek_takes_nothing_and_fences_nobody(buffer: Buffer, url: str):
    buffer.fill(3)
    consumer = buffer.consumer()
    assert run("consume", url, "--peek", "-n", "2").stdout_bytes == b"data0-a\ndata0-b\ndata1-a\ndata1-b\n"
    assert len(run("consume", url, "--peek").stdout_bytes.split()) == 6
    assert consumer.next_batch().sequence == 0
    assert buffer.length() == 3


def test_a_limit_leaves_the_rest_for_the_next_time(buffer: Buffer, url: str):
    buffer.fill(3)
    assert run("consume", url, "--limit", "2").stdout_bytes == b"data0-a\ndata0-b\ndata1-a\ndata1-b\n"
    assert run("consume", url, "--limit", "0").stdout_bytes == b""
    assert run("consume", url).stdout_bytes == b"data2-a\ndata2-b\n"


def test_status_shows_length_lag_and_epoch(buffer: Buffer, url: str):
    buffer.fill(2)
    buffer.consumer()
    answer = json.loads(run("status", url, "--json").stdout)
    assert (answer["length"], answer["epoch"], answer["next_sequence"], answer["oldest_sequence"]) == (2, 1, 2, 0)
    assert answer["lag_seconds"] > 1_000_000
    assert "length 2" in run("status", url).stdout
    assert "lag -" in run("status", url, "--manifest", "ingest/other").stdout


def test_status_shows_every_shard(url: str):
    with Producer(url, shards=2, key=lambda entry: int(entry), flush_interval=0.001) as producer:
        producer.produce([b"0", b"2"]).result(30)
    lines = run("status", url, "--shards", "2", "--json").stdout.splitlines()
    assert [json.loads(line)["length"] for line in lines] == [1, 0]
    assert run("consume", url, "--shards", "2", "--shard", "0").stdout_bytes == b"0\n2\n"


def test_gc_deletes_what_nobody_needs(url: str):
    run("produce", url, input=b"x\n")
    run("consume", url)
    assert "deleted 0, kept 1" in run("gc", url).stdout
    assert "would delete 1" in run("gc", url, "--grace", "0", "--dry-run").stdout
    assert "deleted 1, kept 0" in run("gc", url, "--grace", "0").stdout


@pytest.mark.parametrize(
    "words, says",
    [
        (["status", "ftp://x"], "does not name a store"),
        (["status", "memory://x", "-o", "region=1"], "takes no options"),
        (["dump", "memory://x", "--shards", "2", "--shard", "2"], "shard"),
    ],
)
def test_mistakes_are_one_line(words: list[str], says: str):
    result = run(*words, input=b"x\n", code=2)
    assert says in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_a_malformed_option_is_a_usage_error():
    assert "compression" in run("produce", "memory://x", "--compression", "gzip", code=2).stderr
    assert "KEY=VALUE" in run("status", "memory://x", "-o", "oops", code=2).stderr


@pytest.mark.parametrize(
    "words",
    [["gc", "--grace", "-1"], ["consume", "--limit", "-1"], ["status", "--shards", "0"], ["dump", "--shard", "-1"]],
)
def test_numbers_out_of_range_are_usage_errors(buffer: Buffer, url: str, words: list[str]):
    assert "invalid value" in run(*words, url, code=2).stderr


def test_every_command_has_help():
    for command in ("dump", "status", "produce", "consume", "gc"):
        assert "Usage" in run(command, "--help").stdout


def test_consume_follows_what_is_produced_later(url: str):
    follower = subprocess.Popen([*SCRIPT, "consume", url, "--follow"], stdout=subprocess.PIPE)
    try:
        with Producer(url, flush_interval=0.001) as producer:
            for n in range(3):
                producer.produce([f"{n}".encode()]).result(30)
                assert follower.stdout.readline() == f"{n}\n".encode()
    finally:
        follower.terminate()
        follower.wait(30)
        follower.stdout.close()


def test_consume_says_when_another_consumer_takes_over(buffer: Buffer, url: str):
    buffer.fill(1)
    follower = subprocess.Popen([*SCRIPT, "consume", url, "--follow"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert follower.stdout.readline() == b"data0-a\n"
    buffer.consumer()
    _, said = follower.communicate(timeout=60)
    assert follower.returncode == 1
    assert b"another consumer took over" in said
