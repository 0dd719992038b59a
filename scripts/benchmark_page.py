"""Makes docs/speed.md from benchmarks/results, and puts six rows of it into the README.

python scripts/benchmark_page.py
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "speed.md"
README = ROOT / "README.md"
BEGIN, END = "<!-- benchmark table: begin -->\n", "<!-- benchmark table: end -->\n"
CHOSEN = {
    "journal": (
        "append, one thread, sqlite",
        "append, 64 threads, sqlite",
        "append_many of 1,000, sqlite, disk",
        "append, process durability, sqlite",
        "read as Event objects, sqlite",
        "read_arrow over merged blocks, sqlite",
        "open a store of 10,000,000 events, sqlite",
        "bytes on disk, appended one by one, sqlite",
    ),
    "queue": ("push,", "take + ack", "push_many of 100", "take_many + ack_many of 100"),
    "entity": ("append with expect=", "read an entity of 100 events", "project an entity"),
    "buffer": ("produce 100-byte entries", "consume and ack_through"),
    "spark": ("read a hot topic", "read a sealed topic", "write to a topic", "project", "seal"),
    "spark_buffer": ("write to the buffer",),
    "server": ("append batches of 100 from 8 connections, HTTP",),
}
"""The rows people ask for first, good or bad: by file, by how their first column begins."""


def table() -> str:
    lines = ["| work | result | goal | |", "|---|---|---|---|"]
    for name, wanted in CHOSEN.items():
        path = ROOT / "benchmarks" / "results" / f"{name}.md"
        if not path.exists():
            continue
        rows = [line for line in path.read_text("utf-8").splitlines() if line.startswith("| ")][1:]
        lines += [row for row in rows if row[2:].startswith(wanted) and row.rstrip("| ").count("|") >= 3]
    return "\n".join(lines) + "\n"


SIX = (
    "append, one thread, sqlite",
    "append_many of 1,000, sqlite, disk",
    "read as Event objects, sqlite",
    "take + ack, beside servers too",
    "read an entity of 100 events out of 10 million",
    "seal 10,000,000 events",
)
"""What the README shows, by how the rows begin."""

HEAD = """# How fast

Every number is a ratio within one run: to the machine's own write+fdatasync rate ("raw"), or to a peer with its best
documented settings. `make bench BENCH=journal` (queue, entity, buffer, spark, server, …) measures your machine.
`benchmarks/results` in the repository has every row with percentiles, durability and versions. "short" marks a goal
that is not reached.

"""


def page() -> str:
    return HEAD + table()


def readme() -> str:
    lines = table().splitlines()
    six = [next(line for line in lines if line.startswith(f"| {begin}")) for begin in SIX]
    before, rest = README.read_text("utf-8").split(BEGIN)
    return before + BEGIN + "\n".join([*lines[:2], *six]) + "\n" + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
    README.write_text(readme(), "utf-8")
