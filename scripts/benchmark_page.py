"""Puts the benchmark table into the README, from benchmarks/results.

python scripts/benchmark_page.py
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "README.md"
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


def page() -> str:
    before, rest = PAGE.read_text("utf-8").split(BEGIN)
    return before + BEGIN + table() + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
