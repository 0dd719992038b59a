"""A part whose extra is not installed says in a sentence which one to install; nothing else needs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys, tempfile
for missing in ["ulid", "obstore", "starlette", "uvicorn", "jinja2", "pyspark", "pyarrow",
                "rocksdict", "slatedb", "duckdb", "celery", "django", "eventsourcing", "langchain_core",
                "psycopg", "pymysql", "mcp"]:
    sys.modules[missing] = None
import penstock

def buffer():
    import penstock.buffer

def producer():
    from penstock.buffer import Producer

def server():
    import penstock.server
    penstock.server.app(journal)

def celery():
    import penstock.integrations.celery

def django():
    import penstock.integrations.django.tasks_api

def eventsourcing():
    import penstock.integrations.eventsourcing

def langgraph():
    import penstock.integrations.langgraph

def mcp():
    import penstock.integrations.mcp

def postgresql():
    penstock.outbox.Relay(journal, "postgresql://shop@db/shop")

def mysql():
    penstock.outbox.Relay(journal, "mysql://shop@db/shop")

def spark():
    import penstock.spark
    penstock.spark.session()

file = tempfile.NamedTemporaryFile(suffix=".parquet")
exported = file.name
journal = penstock.open("memory:")
journal.topic("orders").append("placed", {"n": 1}, key="ann")
assert [event.payload for event in journal.topic("orders").read()] == [{"n": 1}]
for extra, use in [
    ("buffer", buffer),
    ("buffer", producer),
    ("server", server),
    ("spark", spark),
    ("celery", celery),
    ("django", django),
    ("eventsourcing", eventsourcing),
    ("langgraph", langgraph),
    ("mcp", mcp),
    ("postgresql", postgresql),
    ("mysql", mysql),
    ("arrow", lambda: list(journal.topic("orders").read_arrow())),
    ("arrow", lambda: journal.export("o.parquet", topics=["orders"])),
    ("arrow", lambda: journal.export("folder", format="parquet")),
    ("arrow", lambda: journal.import_(exported, topics=["orders"])),
    ("sql", lambda: journal.sql("select 1")),
    ("rocksdb", lambda: penstock.open("rocksdb:x")),
    ("object", lambda: penstock.open("s3://bucket/x")),
]:
    try:
        use()
    except penstock.errors.ConfigError as error:
        assert f'pip install "penstock[{extra}]"' in str(error), (extra, error)
    else:
        raise AssertionError(f"{extra} was not missed")
"""


def test_a_missing_extra_is_a_sentence_with_the_command_that_installs_it() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


SERVED = """
import subprocess, sys
from penstock.cli.command import EXTRAS
missing = {name for extra, names in EXTRAS.items() if extra not in ("server", "cli") for name in names}
assert {"ulid", "obstore", "pyarrow", "pyspark"} <= missing
for name in missing:
    sys.modules[name] = None
import penstock
from server.serving import serving

with penstock.open("memory:") as journal, serving(journal) as served:
    queue = journal.queue("mails", max_attempts=1, dead_letter="mails.dead")
    queue.push({"to": "ann"})
    assert served.post("/v1/topics/orders/events", {"kind": "placed"}).status == 201
    for path in ("/", "/topics/orders", "/topics/orders/events/1", "/queues/mails", "/queues/mails?tab=dead",
                 "/schedules", "/pipelines", "/buffers", "/health", "/healthz", "/metrics", "/docs"):
        answer = served.get(path)
        assert answer.status == 200, (path, answer.data)
from penstock.cli.main import run
for words in (["append", "orders", "placed", "{}", "--create"], ["topics"], ["read", "orders"], ["check"], ["queues"]):
    code = run([*words, "--url", sys.argv[1]])
    assert not code, (words, code)
"""


def test_the_server_and_the_command_line_need_no_extra_but_their_own(tmp_path: Path) -> None:
    """The container has these alone."""
    done = subprocess.run(
        [sys.executable, "-c", SERVED, str(tmp_path / "shop.db")],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
