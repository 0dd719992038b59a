"""What each role can remove, change or see: every operation, tried with every role on a journal that has it all.

docs/security.md shows what came of it; `PYTHONPATH=src:tests python tests/server/test_roles.py` writes it there.
"""

from __future__ import annotations

import asyncio
import gc
import tempfile
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

import penstock
from penstock import Draft, ManualClock, Projection, on
from penstock.api import local
from penstock.core.entity.states import SNAPSHOT, StreamedState, StreamedStates, save_streamed
from penstock.core.journal.blocks import Columns, build_wire, encode_wire
from penstock.core.journal.bulk import staged_batches
from penstock.core.journal.keys import prefix_end
from penstock.core.journal.sealed.sealing import seal_topic
from penstock.core.local.topics import REPORTS
from penstock.core.names import is_system
from penstock.core.protocol import bulk
from penstock.core.protocol.openapi import OPERATIONS
from penstock.core.protocol.operation import ROLES, Operation
from penstock.server.application import make_app
from penstock.transfer.objects import StagingArea
from server.serving import ADMIN, READ, TOKENS, WRITE

PAGE = Path(__file__).resolve().parents[2] / "docs" / "security.md"
BEGIN, END = "<!-- made by tests/server/test_roles.py -->\n", "<!-- until here -->\n"

TOKEN_OF = {"none": "", "read": READ, "write": WRITE, "admin": ADMIN}
OWN = "penstock's own topics"
SEEN = {
    b"AN-EVENT": "events",
    b"A-MESSAGE": "messages",
    b"AN-ACT": OWN,
    b"A-REPORT": "reports",
    b"QS1TVEFURS0t": "states",
}
TARGETS = {
    "topic": ("ledger", "archive", "jobs", "orders", "penstock.audit", "penstock.pipelines", "new"),
    "queue": ("ledger", "archive", "jobs", "news", "orders", "penstock.audit", "new"),
}
NAMED_INSIDE = (
    "append_several",
    "read_across",
    "follow_across",
    "move_cursors",
    "read_sizes",
    "stage_blocks",
    "stage_object",
    "commit_staged",
    "drop_staged",
)
"""Operations that name their topics in the body."""

Effects = set[tuple[str, str]]
"""Verbs, and what they are done to."""


PAID = {"amount": 10, "mark": "AN-EVENT"}


class Till(Projection, name="till"):
    total: int = 0

    @on("paid")
    def paid(self, event: Any) -> None:
        self.total += event.payload["amount"]


class World:
    """A journal with logs, queues, sealed history, saved states and topics of penstock's own; and its application."""

    def __init__(self, folder: Path) -> None:
        self.lake = folder / "lake"
        journal = self.journal = local(penstock.open("memory:", clock=ManualClock()), "a test")
        for name in ("ledger", "archive", "orders"):
            topic = journal.topic(name)
            topic.append_many([Draft("paid", PAID, key="k", correlation="together") for _ in range(4)])
            topic.commit("auditor", 4)
        seal_topic(journal._core, "archive", lake=str(self.lake), through=3)
        self.event = journal.topic("ledger").get(1)
        journal.topic("ledger").rebuild(Till)
        state = StreamedState("k", 1, 4, 1, b"A-STATE--")
        streamed = StreamedStates("ledger", "till", 1, "query")
        journal._core.run(lambda commit: save_streamed(commit, streamed, [state], whole=False))
        journal.topic("penstock.audit").append("console.purge", "AN-ACT")
        journal.topic("penstock.pipelines").append("flow.reported", "A-REPORT", key="a/b")
        self.held = {}
        for name, mode in (("jobs", "work"), ("news", "fanout"), ("orders", "work")):
            queue = journal.queue(name, mode=mode, dead_letter="letters" if name == "jobs" else None)
            queue.push("A-MESSAGE", max_attempts=1)
            queue.push_many(["A-MESSAGE"] * 3)
            queue.push("A-MESSAGE", delay=3600)
            if mode == "fanout":
                queue.add_group("mail")
            else:
                self.held[name] = queue.take(consumer="worker").token  # type: ignore[union-attr]
                queue.take().nack(dead=True)  # type: ignore[union-attr]
            queue.every(86_400, "A-MESSAGE", name="daily")
        journal.queue("news").pause()
        self.area = StagingArea(f"file://{folder}/area")
        self.app = make_app(journal, tokens=TOKENS, lakes=[str(self.lake)], staging=[self.area.url])
        self.loop = asyncio.Runner()

    def close(self) -> None:
        self.loop.close()
        self.app.state.service.sampler.stop()
        self.journal.close()

    def things(self, *, tidy: bool = True) -> dict[tuple[str, object], object]:
        """Everything that a client could do something to: what it is and which one, with its value."""
        journal = self.journal
        if tidy:
            journal.maintain()  # what may go in passing goes now
        found: dict[tuple[str, object], object] = {}
        for name in journal.topics():
            topic, record = journal.topic(name), journal._registry.record(name)
            kind = "reports" if name in REPORTS else OWN if is_system(name) else "events"
            if record is None or record.over_log:
                found |= {(kind, (name, event.seq)): event.raw for event in topic.read()}
            found[OWN if is_system(name) else "settings", name] = topic.settings
            found |= {("cursors", (name, consumer)): position for consumer, position in topic.cursors().items()}
        for name in journal.queues():
            queue = journal.queue(name)
            found["queues", name] = queue.policy, queue.groups(), queue.pauses(), queue.schedules()
            for one in queue.messages():
                found["messages", (name, one.seq, one.group)] = one.state, one.attempts, one.deadline
        with journal._engine.read() as snap:
            found |= {("states", key): value for key, value in snap.scan(SNAPSHOT, prefix_end(SNAPSHOT))}
            found |= {("staged blocks", batch): record.size for batch, record in staged_batches(snap)}
        found |= {("sealed files", one): one.read_bytes() for one in self.lake.rglob("*.parquet")}
        return found

    def ask(self, operation: Operation[Any], target: str, role: str) -> tuple[int, bytes]:
        """Does one operation to one topic or queue; returns the status and what was answered."""
        if operation.name in ("commit_staged", "drop_staged"):
            staged = self.ask(bulk.STAGE_BLOCKS, target, role)
            if staged[0] >= 400:
                return staged
        body = BODIES[operation.name](self, target) if operation.name in BODIES else {}
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        path = operation.target([self._name(part, target) for part in operation.names])
        last = b"data: " if target in self.journal.topics() or not target else b": following"
        return self.loop.run(_asked(self.app, operation, path, data if operation.body else b"", TOKEN_OF[role], last))

    def _name(self, part: str, target: str) -> str:
        given = {
            "consumer": "auditor",
            "group": "mail",
            "schedule": "daily",
            "event": "1",
            "seq": "3",
            "piece": "0",
        }
        messages = (message.id for name in self.journal.queues() for message in self.journal.queue(name))
        given |= {
            "id": next(messages, "none"),
            "correlation": "together",
            "token": self.held.get(target, "none"),
            "batch": _batch(target),
        }
        return given.get(part, target)


async def _asked(
    app: Any, operation: Operation[Any], path: str, body: bytes, token: str, last: bytes
) -> tuple[int, bytes]:
    """The application's answer; of a stream what comes up to `last`."""
    status, answer, enough = 0, b"", asyncio.Event()
    waiting = [{"type": "http.request", "body": body}]

    async def receive() -> dict[str, Any]:
        if not waiting:
            await enough.wait()
        return waiting.pop() if waiting else {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        nonlocal status, answer
        status = message.get("status", status)
        answer += message.get("body", b"")
        if last in answer:
            enough.set()

    headers = [(b"host", b"x"), (b"content-type", operation.takes.encode())]
    headers += [(b"authorization", b"Bearer " + token.encode())] if token else []
    scope = {"type": "http", "method": operation.method, "path": path, "headers": headers, "root_path": ""}
    asked = {"query_string": QUERIES.get(operation.name, "").encode(), "scheme": "http", "client": ("10.0.0.1", 1)}
    await app({**scope, **asked}, receive, send)
    return status, answer


def _batch(target: str) -> str:
    return uuid.uuid5(uuid.NAMESPACE_DNS, target).hex


def _piece(target: str) -> bytes:
    return msgspec.msgpack.encode([(target, encode_wire(build_wire(Columns(["more"], [b"1"]), 0, 0, 0)))])


def _states(world: World, **more: object) -> dict[str, Any]:
    forged = StreamedState("k", Till.__projection__.fingerprint, 4, 1, msgspec.msgpack.encode({"total": 1_000_000}))
    return {"journal": world.journal.id, "name": "till", "version": 1, "states": [forged], **more}


QUERIES = {
    "drop_topic": "force=true",
    "find_position": "time=1h",
    "read_cuts": "through=9",
    "read_blocks": "through=9&strict=false",
    "peek_messages": "limit=9",
    "stage_blocks": "job=job",
    "drop_staged": "job=job",
}
BODIES: dict[str, Callable[[World, str], Any]] = {
    "append_several": lambda world, target: [{"topic": target, "kind": "more"}],
    "append_events": lambda world, target: {"kind": "more"},
    "configure_topic": lambda world, target: {"max_events": 1},
    "move_cursor": lambda world, target: {"to": "start", "seek": True},
    "move_cursors": lambda world, target: {"positions": {target: 1}},
    "read_across": lambda world, target: {"topics": [target]},
    "follow_across": lambda world, target: {"topics": [target]},
    "compact_topic": lambda world, target: {"through": 3, "force": True},
    "erase_events": lambda world, target: {"seqs": [1, 2], "by": "ada"},
    "configure_queue": lambda world, target: {"lease": 7},
    "add_group": lambda world, target: {"name": "more"},
    "add_schedule": lambda world, target: {"name": "hourly", "interval": 3600},
    "move_messages": lambda world, target: {"to": "news"},
    "discard_messages": lambda world, target: {"seqs": list(range(1, 20))},
    "run_now": lambda world, target: {"seqs": list(range(1, 20))},
    "push_together": lambda world, target: {"id": "0" * 32, "calls": [{"queue": "news", "task": "more"}]},
    "store_step": lambda world, target: {"name": "one", "result": 1},
    "note_progress": lambda world, target: {"share": 0.5},
    "push_messages": lambda world, target: {"payload": "more"},
    "take_messages": lambda world, target: {"limit": 100},
    "claim_deliveries": lambda world, target: {"min_idle": 0, "limit": 100},
    "ack_and_take": lambda world, target: {"limit": 100},
    "ack_deliveries": lambda world, target: {"tokens": [world.held.get(target, "none")]},
    "nack_delivery": lambda world, target: {"dead": True},
    "extend_delivery": lambda world, target: {"lease": 600},
    "leave_queue": lambda world, target: {"consumer": "worker"},
    "read_sizes": lambda world, target: [{"topic": target, "after": 0, "through": 9}],
    "read_spans": lambda world, target: {"wanted": {"kinds": ["more"]}, "through": 9},
    "find_correlations": lambda world, target: [world.event.id],  # type: ignore[union-attr]
    "stage_blocks": lambda world, target: _piece(target),
    "stage_object": lambda world, target: {
        "area": world.area.url,
        "path": world.area.put("job", 0, _batch(target), 0, _piece(target)),
        "size": len(_piece(target)),
    },
    "plan_files": lambda world, target: {"lake": str(world.lake)},
    "commit_staged": lambda world, target: {"journal": world.journal.id, "batches": [_batch(target)]},
    "seal_topic": lambda world, target: {"lake": str(world.lake), "through": 4},
    "find_states": lambda world, target: {"name": "till", "version": 1, "query": "query", "keys": ["k"]},
    "save_states": lambda world, target: _states(world, query="query", whole=True),
    "replace_states": lambda world, target: _states(world, compacted=0, begin=True),
}


def done_by(role: str, operation: Operation[Any], worlds: Worlds) -> Effects:
    """What an operation does with a role, as verbs and things; nothing where it is refused."""
    part = "topic" if operation.name in NAMED_INSIDE else next((one for one in operation.names if one in TARGETS), None)
    may = operation.role is None or (role != "none" and ROLES.index(role) >= ROLES.index(operation.role))  # type: ignore[arg-type]
    world, before = worlds.clean()
    answers = [world.ask(operation, target, role) for target in (TARGETS[part] if part else ("",))]
    after = world.things(tidy=may)  # what a refused request did in passing, the next that is not refused would show
    found = {("adds", thing) for thing, _ in after.keys() - before.keys()}
    found |= {("removes", thing) for thing, _ in before.keys() - after.keys()}
    found |= {("changes", one[0]) for one in before.keys() & after.keys() if before[one] != after[one]}
    worlds.dirty = bool(found)
    statuses = {status for status, _ in answers}
    assert 500 not in statuses and (may or (statuses <= {401, 403} and not found)), (operation.name, role, answers)
    found |= {("sees", thing) for mark, thing in SEEN.items() if any(mark in answer for _, answer in answers)}
    return found or ({("sees", "names and numbers")} if min(statuses) < 400 else set())


class Worlds:
    """A world for each operation that may do something; the one before, where it has done nothing."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._world: World | None = None
        self._things: dict[tuple[str, object], object] = {}
        self._made = 0
        self.dirty = False

    def clean(self) -> tuple[World, dict[tuple[str, object], object]]:
        """A world to which nothing was done, and the things in it."""
        if self._world is None or self.dirty:
            self.close()
            self._made += 1
            self._world, self.dirty = World(self._folder / str(self._made)), False
            self._things = self._world.things()
        return self._world, self._things

    def close(self) -> None:
        if self._world is not None:
            self._world.close()
            self._world = None


@contextmanager
def tried(folder: Path) -> Iterator[Worlds]:
    worlds = Worlds(folder)
    try:
        yield worlds
    finally:
        worlds.close()


Table = dict[str, dict[str, Effects]]


def try_everything(folder: Path) -> Table:
    """By operation and role: what it does."""
    with tried(folder) as worlds:
        return {one.name: {role: done_by(role, one, worlds) for role in TOKEN_OF} for one in OPERATIONS}


def shown(table: Table) -> str:
    """The table as a page shows it: operations that do the same are one row."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for name, by_role in table.items():
        cells = [_cell(by_role[role]) for role in TOKEN_OF]
        for at in range(len(cells) - 1, 0, -1):
            if cells[at] == cells[at - 1] != "":
                cells[at] = "the same"
        rows.setdefault(tuple(cells), []).append(f"`{name}`")
    lines = [f"| operations | {' | '.join(['no token', *ROLES])} |", "|---|---|---|---|---|"]
    lines += [f"| {', '.join(names)} | {' | '.join(cells)} |" for cells, names in sorted(rows.items(), reverse=True)]
    return "\n".join(lines) + "\n"


def _cell(effects: Effects) -> str:
    verbs = {
        verb: sorted(thing for said, thing in effects if said == verb)
        for verb in ("removes", "changes", "adds", "sees")
    }
    return "; ".join(f"{verb} {', '.join(things)}" for verb, things in verbs.items() if things)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    return try_everything(tmp_path_factory.mktemp("roles"))


@pytest.mark.slow
def test_read_sees_and_write_harms_no_history(table: Table) -> None:
    for operation, by_role in table.items():
        assert operation == "read_openapi" or not by_role["none"]
        assert {verb for verb, _ in by_role["read"]} <= {"sees"}, operation
        assert not by_role["write"] & {(verb, "events") for verb in ("removes", "changes")}, operation
        assert not by_role["write"] & {(verb, "sealed files") for verb in ("removes", "changes")}, operation
        for role, thing in (("write", "states"), ("write", OWN), ("admin", OWN)):
            assert {verb for verb, said in by_role[role] if said == thing} <= {"sees"}, (operation, role)
        assert by_role["admin"], f"the sample of {operation} is refused: it shows nothing"


@pytest.mark.slow
def test_the_page_shows_what_each_role_can_do(table: Table) -> None:
    page = PAGE.read_text("utf-8")
    assert page.partition(BEGIN)[2].partition(END)[0] == shown(table), "see this file's first lines"


def test_names_that_are_only_asked_for_leave_nothing(tmp_path: Path) -> None:
    """Whatever a token that may only read asks for: no object of the server has the name when it is answered."""
    with tried(tmp_path) as worlds:
        world, before = worlds.clean()
        for operation in OPERATIONS:
            if operation.role == "read" and TARGETS.keys() & set(operation.names):
                world.ask(operation, f"unheard-of-{operation.name}", "read")
        gc.collect()
        holders = [one for one in gc.get_objects() if type(one) in (dict, list, tuple, set, OrderedDict)]
        kept = [holder for holder in holders if _has(holder, "unheard-of-")]
        assert kept == [] and world.things() == before


def _has(holder: Any, text: str) -> bool:
    values = [*holder, *holder.values()] if isinstance(holder, dict) else list(holder)
    return any(isinstance(value, str) and value.startswith(text) for value in values)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        text = shown(try_everything(Path(made)))
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    PAGE.write_text(before + BEGIN + text + END + rest.partition(END)[2], "utf-8")
