"""Makes docs/speed.md from benchmarks/results, and puts the rates of queues into the README and docs/index.md.

python scripts/benchmark_page.py
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "speed.md"
RATES = (ROOT / "README.md", ROOT / "docs" / "index.md")
"""The pages that show the rates of queues between two comments."""
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
    "sql": ("count by kind", "sum of a payload field", "one key"),
    "spark": ("read a hot topic", "read a sealed topic", "write to a topic", "project", "seal"),
    "spark_buffer": ("write to the buffer",),
    "server": ("append batches of 100 from 8 connections, HTTP",),
}
"""The rows people ask for first, good or bad: by file, by how their first column begins."""
GROWTH = {
    "growth": (
        "Journal.stats |",
        "Journal.correlated |",
        "Journal.read(limit=) |",
        "Topic.append |",
        "Topic.append(expect=) |",
        "Topic.read(key=) |",
        "Topic.read(key_prefix=) |",
        "Topic.read(kind=) |",
        "Queue.push |",
        "Queue.take |",
        "Queue.peek(priorities) |",
        "Queue.messages |",
        "Queue.__len__(fanout) |",
        "open, 200",
        "correlated, 200",
        "a transaction over three topics",
        "drop_topic, 200",
        "commit, 1,000",
        "compact again, 1,000",
        "take, lanes",
        "take, delayed",
        "take, throttle",
        "take, rate",
        "take, priorities",
        "produce, 1,000",
        "ack, 1,000",
        "read(key=), 200",
        "index, for each event",
        "append, alone",
    ),
}
"""The same for what has to cost as much in a large store as in a small one."""


def table(chosen: Mapping[str, tuple[str, ...]]) -> str:
    lines = ["| work | result | goal | |", "|---|---|---|---|"]
    for name, wanted in chosen.items():
        path = ROOT / "benchmarks" / "results" / f"{name}.md"
        if not path.exists():
            continue
        rows = [line for line in path.read_text("utf-8").splitlines() if line.startswith("| ")][1:]
        lines += [row for row in rows if row[2:].startswith(wanted) and row.rstrip("| ").count("|") >= 3]
    return "\n".join(lines) + "\n"


WORK = {
    "push": "push",
    "take + ack, one by one": "take + ack",
    "push_many of 100": "push, 100 at a time",
    "take_many + ack_many of 100": "take + ack, 100 at a time",
}
"""What is done in a second, by the row that says it of penstock; its peers' rows follow it."""
_NAME = re.compile(r"(?:&nbsp;)*(?:beside )?(.*?)(?: [\d.]+)?")
_RATE = re.compile(r"([\d,]+)/s")


def rates() -> str:
    """Messages a second, penstock and its peers in one run."""
    found: dict[str, dict[str, str]] = {"penstock": {}}
    work = None
    for line in (ROOT / "benchmarks" / "results" / "queue.md").read_text("utf-8").splitlines():
        if not line.startswith("| "):
            continue
        first, result = (cell.strip() for cell in line.split("|")[1:3])
        is_peer = first.startswith("&nbsp;")
        if not is_peer and not (work is not None and first.startswith((f"{work}, beside", "take + ack, beside"))):
            work = first if first in WORK else None
        match, name = _RATE.search(result), _NAME.fullmatch(first)
        if work is not None and match is not None and name is not None:
            said = match[1] + (" (no ack)" if "(no ack)" in result else "")
            found.setdefault(name[1] if is_peer else "penstock", {})[work] = said
    lines = ["| messages a second | " + " | ".join(WORK.values()) + " |", "|---" * (len(WORK) + 1) + "|"]
    lines += [f"| {name} | " + " | ".join(row.get(work, "–") for work in WORK) + " |" for name, row in found.items()]
    return "\n".join(lines) + "\n"


HEAD = """# How fast

All programs took turns in one run, on a machine with 2 cores. Messages have 100 bytes, the store is SQLite, and
one thread works. A push or an acknowledgement that has returned is on disk, except for Redis with everysec.
Rates depend on the disk, and on other work that the disk does. The ratios below are steadier.

"""

DETAIL = """
## In ratios

Every number here is a ratio within one run. The other side of the ratio is the machine's own rate of write and
fdatasync ("raw"), or a peer with its best documented settings. `make bench BENCH=journal` (queue, entity,
buffer, spark, server, …) measures your machine. `benchmarks/results` in the repository has every row, with
percentiles, durability and versions. "short" marks a goal that is not reached.

"""


LARGE = """
## In a large store

The cost of a call depends on its answer, not on the size of the store. The table has the CPU time of one call
in milliseconds, in a small store → in a large store. Where a row names no other sizes, the small store has
3,000 events in each of twelve topics and 3,000 messages in each of five queues. The large store has 60,000 of
each. The three pairs are measured after building the store, after opening it again, and after `maintain()`. The
goal is three times the time in the small store, or 3 ms. `make bench BENCH=growth` measures your machine.

Tests count the requests that every public operation makes to the engine, in a small store and in a large store.
Other tests bound the largest commit of `maintain`, `compact`, `compact_keys`, `reindex`, `configure` and
`drop_topic`. One commit removes or rewrites at most 32 blocks, or two million events of sealed files. When a
sealed file is recorded, its blocks are removed in the same commit. An append that 500 clients follow is read
once for all of them.

"""


TRIED = """
## What was tried

`make bench BENCH=compare OLD=<commit>` times the hot paths of a commit and of the tree, in alternating rounds.

| change | measured | kept |
|---|---|---|
| look at the store right after a single commit of another process, and pause only in a burst | the event arrives \
after 0.9 ms instead of 2.1 (p50); the reader's CPU time does not grow | yes |
| trust a folder's time half a second after its last change, not three seconds | 192,000 → 163,000 instructions \
(callgrind) for each append in the first seconds | yes |
| use inotify in place of the remaining `stat` | 0.3 µs instead of 1.7 per commit, about 4 % of an append. inotify \
does not see the move of a parent folder | no |
| each thread of a worker takes for itself, and acknowledges in the commit that takes the next message | measured \
with `compare` against the commit before, and a handler that does nothing. CPU time, one at a time: 117 → 68 µs with \
process durability (1.73 ×), 242 → 139 µs on disk (1.63 ×). CPU time, eight at a time: 1.47 × and 1.54 × less. Time \
for each message: 1.88 × and 1.42 × less | yes |
| the same for `for delivery in queue.receive()` | not done. The block acknowledges before it is known whether the \
loop goes on, and a loop that ends or pauses would hold the next message | no |
| over HTTP: one timer for all bodies, and one for the heads of each connection; one pass over the headers; no query \
string where a request has none; a shorter path for one draft with a kind and a payload | an append with \
eight requests at a time costs the application without its HTTP server 97 → 64 µs of CPU; a bare Starlette needs \
34–37 µs. The whole server needs 132–156 µs, and a bare server 85–107 µs (`BENCH=server_costs`). The goal of 1.2 × is \
not reached | yes |
| a read with a limit does not ask for the end of each topic | `journal.read(limit=100)` over 1,000 topics: 26–31 → \
21 ms of CPU | yes |
| a read of several topics asks each topic without a query of its own, where every event is wanted | \
`journal.read(limit=100)` over 1,000 topics, alternating on a busy machine: 28.3 and 31.4 → 23.8 and 27.6 ms of CPU. \
The read still asks each topic for its first event: no row says which topic has the oldest event | yes |
| wake the writer's thread by a lock instead of an event of `threading` | appends of one coroutine 68–70 → 64–77 µs of \
CPU, of eight 14–17 → 16–18 µs: no gain | no |
| pause the garbage collector while a program imports penstock | 83.4 → 82.7 ms of CPU for a program that opens a \
journal, appends and ends: the next collection looks through what the pause has left | no |
| processes that write one SQLite store queue up, and let the next process write after 5 ms | old and new, alternating \
three times on a busy machine. 8 processes with process durability: the longest wait 436, 651, 715 → 288, 316, 250 \
ms; rate × one process 0.75–1.00 → 1.26–1.59; CPU for an append 299–331 → 149–184 µs. 2 processes: 0.82–0.86 → \
0.85–1.15. One process: no change | yes |
| a journal makes its queues, fences, gates and states when a program first asks for them; the first operation imports \
the structs of the wire; the first filter computes its masks | a program that opens a journal, appends and ends \
imports 101 modules instead of 156 (24 ms instead of 45). It uses 2.05–2.1 × the CPU time of `import apsw, msgspec` \
instead of 2.6–2.7 ×. The goal of 1.6 × is not reached: `pathlib` and `urllib` take 2 ms, and stored structs and their \
decoders take most of the rest | yes |
| new SQLite stores keep blocks in a table with an integer key | an append writes one page instead of two. Rounds \
alternate with the commit before on a busy machine (load 12 to 18). CPU time with process durability: append 34.5 → \
30.9 µs (1.11 ×), push 40.0 → 37.4 µs (1.10 ×), take + ack no change. On disk, the fastest rounds: append 78.7 → 69.7 \
µs (1.13 ×). A read of the last ten events costs more, because each row id becomes a key again: 62 → 66 µs, \
in alternating rounds 0.88 ×. `get(seq)` is at 0.91–0.95 ×, a read of all events at 0.94–1.02 × | yes |
| make no exception inside the interpreter during an append | `in` between bytes makes such exceptions, and so do \
dictionaries with weak values. 178,000 → 162,000 instructions (callgrind) for an append | yes |
| an append, a push and a take + ack against commit `1043499d` | measured with `compare` on a busy machine (load 12), \
21 rounds. CPU time with process durability: append 0.92 × (before: 0.80 ×), push 0.89 ×, take + ack 1.00 × (before: \
0.90 ×). On disk: append 1.09 × (before: 0.89 ×). The look for lost files costs 1.5 of 31 µs, and handles that serve \
stores and servers alike cost another call | short of 1.0 with process durability |
| `len` of a fanout queue without a look at each group's record | 73 µs of CPU with 20 groups, 820 µs with 300: 2.5 \
µs for each group, whose record must be read. Every take would have to write a stored sum | no |
"""


def page() -> str:
    return HEAD + rates() + DETAIL + table(CHOSEN) + LARGE + table(GROWTH) + TRIED


def with_rates(page: Path) -> str:
    """Returns the text of a page with today's rates between its two comments."""
    before, rest = page.read_text("utf-8").split(BEGIN)
    return before + BEGIN + rates() + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
    for shown in RATES:
        shown.write_text(with_rates(shown), "utf-8")
