"""Calls the public surface with arguments that nobody should give it: errors of penstock's tree, and nothing else.

    python -m torture.junk [--seed 1] [--minutes 10]

The surface is found by reflection: what `penstock` and `penstock.buffer` export, and the methods of every handle that
a small journal gives, here and for event loops. A call has the right number of arguments; some are what the
parameter's name asks for, the others are junk. A `TypeError` is right where the call itself has a wrong signature.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, chdir
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, NamedTuple

import msgspec

import penstock
import penstock.aio
import penstock.buffer
from penstock import Draft, ManualClock, Projection, on
from penstock.errors import PenstockError
from searching import Search
from server.serving import serving


class Total(Projection):
    """A projection that any event suits."""

    events: int = 0

    @on("placed")
    def add(self, event: Any) -> None:
        self.events += 1


class Order(msgspec.Struct):
    """A type of payloads."""

    n: int


class Unresolved(msgspec.Struct):
    """A type whose annotation names nothing."""

    n: "Nowhere"  # type: ignore[name-defined]  # noqa: F821, UP037


CYCLE: list[Any] = [1]
CYCLE.append(CYCLE)
LOOP: dict[str, Any] = {"n": 1}
LOOP["x"] = LOOP


def _handle(*_: object) -> None:
    """A handler, a gate, a chooser: it takes anything."""


class Opaque:
    """An object that is nothing penstock knows."""

    def __repr__(self) -> str:
        return "<opaque>"


JUNK: list[Any] = [
    *(CYCLE, LOOP, Unresolved, Total, Order),
    *(None, True, False, 0, 1, 5, -1, 2**63, -(2**64), 10**400, 1.5, -0.5, float("nan"), float("inf")),
    *("", " ", "x", "nö", "\0", "\ud800", "a" * 500, "*", "shop.*", "1h", "payload.n >", b"", b"\xff", bytearray(b"x")),
    *([], [5], ["x"], [None], {}, {"x": 5}, {5: "x"}, {"t": -1}, {"t": "x"}, set(), {5}, (), (1, 2), object, int, str),
    *(Opaque(), Opaque, _handle, datetime(2026, 1, 1), datetime.max.replace(tzinfo=UTC), timedelta.max),
    *(timedelta(days=-1), Draft("k"), [Draft("k", Opaque())], [[Draft("k")]], Exception("x"), complex(1, 1)),
]
ENDLESS = {"wait", "timeout", "min_idle", "stop_after", "for_"}
"""Parameters that say how long a call may take: a large one is no junk."""
CALLED = {"progress", "handler", "function", "draft", "where"}
"""Parameters that are called: what a function of the caller's raises is the caller's own."""
BRIEF: list[Any] = [0, -1, "x", None, float("nan"), 10**400, [], Opaque(), -(2**64)]
PLAUSIBLE: dict[str, Callable[[World], Any]] = {
    "after": lambda world: 0,
    "columns": lambda world: {"t": "n INT"},
    "consumer": lambda world: "c",
    "correlation_id": lambda world: world.event.correlation_id or world.event.id,
    "drafts": lambda world: [Draft("k", 1)],
    "handler": lambda world: _handle,
    "id": lambda world: world.event.id,
    "interval": lambda world: 60,
    "journal": lambda world: world.journal,
    "key": lambda world: "a",
    "kind": lambda world: "placed",
    "limit": lambda world: 2,
    "min_idle": lambda world: 0,
    "name": lambda world: "c",
    "path": lambda world: "path",
    "payload": lambda world: {"n": 1},
    "payloads": lambda world: [{"n": 1}],
    "position": lambda world: 1,
    "projection": lambda world: Total,
    "query": lambda world: "select count(*) from t",
    "seq": lambda world: 1,
    "seqs": lambda world: [1],
    "through": lambda world: 1,
    "time": lambda world: datetime(2026, 1, 1, tzinfo=UTC),
    "to": lambda world: world.journal.queue("other"),
    "topic": lambda world: "t",
    "url": lambda world: world.url,
    "wait": lambda world: 0,
}
OUT = {
    # They end only when somebody ends them.
    "run", "run_async", "start", "receive", "result", "wait", "join", "serve", "consume", "follow",
    # They are told what was junk by the protocol of `with`, or by pickle.
    "add_done_callback",
}  # fmt: skip


class World:
    """A small journal with one of every handle, here or at a server."""

    def __init__(self, stack: ExitStack, served: bool = False) -> None:
        self.journal = stack.enter_context(penstock.open("memory:", clock=ManualClock()))
        self.url = "memory:"
        if served:
            self.url = stack.enter_context(serving(self.journal)).url
            self.journal = stack.enter_context(penstock.open(self.url))
        self.topic = self.journal.topic("t")
        self.topic.append_many([Draft("placed", {"n": 1}, key="a"), Draft("paid", {"n": 2}, key="b")])
        (self.event, _) = self.topic.read()
        self.queue = self.journal.queue("q", priority=True)
        self.queue.push_many([{"n": 1}, {"n": 2}, {"n": 3}])
        self.stack = stack

    def handle(self, name: str) -> Any:
        """One of the handles."""
        journal, stack = self.journal, self.stack
        match name:
            case "transaction":
                return stack.enter_context(journal.transaction())
            case "fence":
                return stack.enter_context(journal.fence())
            case "outbox":
                return journal.outbox()
            case "delivery":
                return self.queue.take()
            case "subscription":
                return stack.enter_context(self.topic.subscribe())
            case "subscription of all":
                return stack.enter_context(journal.subscribe())
            case "ticket":
                return self.topic.submit("k")
            case "tasks":
                return penstock.Tasks(journal)
            case "task":
                return penstock.Tasks(journal).task(_named)
            case "worker":
                return self.queue.worker(_handle)
            case "watch":
                return stack.enter_context(self.topic.watch(Total, "a"))
            case "projection":
                return self.topic.project(Total, "a")
            case "schedule":
                return self.queue.every(60, name="s")
            case "clock":
                return ManualClock()
            case "typed topic":
                return journal.topic("typed", payload=Order)
            case "typed queue":
                return journal.queue("typed orders".replace(" ", "-"), payload=Order)
            case "aio":
                return penstock.aio.AsyncJournal(journal)
            case "aio topic":
                return penstock.aio.AsyncTopic(self.topic)
            case "aio queue":
                return penstock.aio.AsyncQueue(self.queue)
            case "aio outbox":
                return penstock.aio.AsyncJournal(journal).outbox()
            case _:
                return getattr(self, name)


def _named(n: int = 0) -> None:
    """A task."""


HANDLES = [
    *("journal", "topic", "queue", "transaction", "fence", "outbox", "delivery", "subscription", "subscription of all"),
    *("ticket", "tasks", "task", "worker", "watch", "projection", "schedule", "clock", "event"),
    *("typed topic", "typed queue", "aio", "aio topic", "aio queue", "aio outbox"),
]
SERVED = {
    "penstock",
    "journal",
    "topic",
    "queue",
    "outbox",
    "delivery",
    "subscription",
    "ticket",
    "typed topic",
    "typed queue",
    "task",
}
"""What is tried at a server as well."""
EXPORTS = [
    *("CheckReport", "CompactReport", "CopyReport", "Delivery", "Description", "DropReport", "Event", "ExportReport"),
    *("Fence", "ImportReport", "InclusionProof", "Journal", "JournalSubscription", "Pause", "PendingDelivery"),
    *(
        "Pressure",
        "RunningTask",
        "Queue",
        "QueueConsumer",
        "QueueMessage",
        "QueueStats",
        "RebuildReport",
        "Receipt",
        "ResultTicket",
    ),
    *("Schedule", "Subscription", "Task", "Ticket", "Topic", "TopicConsumer", "Transaction", "TreeRoot"),
    *("VerifyReport", "Watch", "Worker", "Clock", "errors", "Middleware", "Projection", "Outbox"),
]
"""What a program is given and does not make: penstock calls these with what it has checked."""


class Target(NamedTuple):
    """What is called: a method of a handle, or a function of a module."""

    handle: str
    name: str

    def __str__(self) -> str:
        return f"{self.handle}.{self.name}"


def targets() -> list[Target]:
    """The public surface."""
    found = [Target("penstock", name) for name in penstock.__all__ if name not in EXPORTS]
    found += [Target("buffer", name) for name in ("Producer", "Consumer", "drain")]
    for handle in HANDLES:
        with ExitStack() as stack:
            kind = type(World(stack).handle(handle))
        names = [name for name in dir(kind) if not name.startswith("_") and name not in OUT]
        found += [Target(handle, name) for name in names if inspect.isfunction(inspect.getattr_static(kind, name))]
    return found


def _callable(world: World, target: Target) -> Callable[..., Any]:
    match target.handle:
        case "penstock":
            home: Any = penstock
        case "buffer":
            home = penstock.buffer
        case _:
            home = world.handle(target.handle)
    found: Callable[..., Any] = getattr(home, target.name)
    return found


def _arguments(call: Callable[..., Any], world: World, rng: random.Random) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a call that has a right signature; at least one is junk."""
    required: list[str] = []
    optional: list[str] = []
    positional: list[str] = []
    for name, one in inspect.signature(call).parameters.items():
        if one.kind is one.POSITIONAL_ONLY or (one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD):
            positional.append(name)
        elif one.kind is one.KEYWORD_ONLY and one.default is one.empty:
            required.append(name)
        elif one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD):
            optional.append(name)
    chosen = [*positional, *required, *rng.sample(optional, min(len(optional), rng.choice((0, 1, 1, 2, 3))))]
    bad = rng.choice(chosen) if chosen else None

    def value(name: str) -> Any:
        if name != bad and rng.random() < 0.8 and name in PLAUSIBLE:
            return PLAUSIBLE[name](world)
        given = rng.choice(BRIEF if name in ENDLESS else JUNK)
        return None if name in CALLED and callable(given) else given

    return [value(name) for name in positional], {name: value(name) for name in chosen if name not in positional}


class Finding(NamedTuple):
    """An error that is not penstock's."""

    target: Target
    given: str
    error: BaseException

    def __str__(self) -> str:
        where = _place(self.error.__traceback__)
        return f"{self.target}({self.given}) raised {type(self.error).__name__}: {self.error!s:.200} ({where})"


def _place(trace: TracebackType | None) -> str:
    places = []
    while trace is not None:
        code = trace.tb_frame.f_code
        if "penstock/" in code.co_filename:
            places.append(f"{code.co_filename.partition('penstock/')[2]}:{trace.tb_lineno}")
        trace = trace.tb_next
    return " < ".join(reversed(places[-3:]))


def _is_of_signature(error: TypeError) -> bool:
    """Whether the call itself, or that of a task that it is about, has arguments that do not fit."""
    trace = error.__traceback__
    depth = 0
    while trace is not None and trace.tb_next is not None:
        trace, depth = trace.tb_next, depth + 1
    return depth == 0 or (trace is not None and trace.tb_frame.f_code.co_filename == inspect.__file__)


def try_junk(target: Target, seed: str, served: bool = False) -> Finding | None:
    """One call; what it raised when that is no error of penstock's tree. Those of the tree are raised."""
    rng = random.Random(f"{seed} {target}")
    given = ""
    try:
        with ExitStack() as stack:
            world = World(stack, served)
            call = _callable(world, target)
            args, options = _arguments(call, world, rng)
            given = ", ".join([*(f"{one!r:.60}" for one in args), *(f"{n}={v!r:.60}" for n, v in options.items())])
            try:
                _use(call(*args, **options))
            except TypeError as error:
                if not _is_of_signature(error):
                    raise
    except PenstockError:
        raise
    except TimeoutError:  # a ticket's, as those of `concurrent.futures` raise it
        return None
    except Exception as error:
        return Finding(target, given, error)
    return None


def _use(found: Any) -> None:
    """Makes what is lazy happen."""
    if inspect.iscoroutine(found):
        asyncio.run(asyncio.wait_for(found, 20))
    elif inspect.isasyncgen(found):
        asyncio.run(_drain(found))
    elif inspect.isgenerator(found) or isinstance(found, map):
        _some(found)
    elif hasattr(found, "close") and not hasattr(found, "fileno"):
        found.close()
    elif hasattr(found, "__exit__") and hasattr(found, "__enter__"):
        with found:
            pass


def _some(found: Iterator[Any]) -> None:
    for _, _ in zip(range(5), found, strict=False):
        pass


async def _drain(found: Any) -> None:
    count = 0
    async for _ in found:
        count += 1
        if count == 5:
            break
    await found.aclose()


class Hunt(NamedTuple):
    """What came of many calls."""

    made: int
    refused: int
    found: list[Finding]
    """What was found, once per place."""


def hunt(seed: str, calls: int, seconds: float, *, served: bool) -> Hunt:
    """So many calls of everything, or as many as there is time for."""
    found: dict[tuple[str, str], Finding] = {}
    made = refused = 0
    surface = [one for one in targets() if not served or one.handle in SERVED]
    ends = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        for number, target in ((number, target) for number in range(calls) for target in surface):
            if time.monotonic() > ends:
                break
            made += 1
            try:
                one = try_junk(target, f"{seed} {number}", served)
            except PenstockError:
                refused += 1
            else:
                if one is not None:
                    found.setdefault((type(one.error).__name__, _place(one.error.__traceback__)), one)
    return Hunt(made, refused, list(found.values()))


def main() -> int:
    search = Search("torture.junk", __doc__, counts="calls of everything, with other arguments each time")
    options = search.begin()
    os.environ["PENSTOCK_URL"] = "memory:"
    for home, served in ("here", False), ("at a server", True):
        done = hunt(str(options.seed), options.count, options.seconds / 2, served=served)
        search.tell(done.found)
        print(f"{home}: {done.made:,} calls, {done.refused:,} refused")
    return search.end("here and at a server")


if __name__ == "__main__":
    sys.exit(main())
