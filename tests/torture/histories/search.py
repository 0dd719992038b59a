"""A second opinion on histories: a search for an order, by Wing and Gong's algorithm as Lowe and Porcupine have it.

`order` and `check` know which order alone could explain a history, from the versions that operations name, and search
nothing. Here nothing is known but a model of what is used: a state, and what each operation does to it. The operations
of one topic are put one after the other in every way that real time allows until one way fits; states that were
reached with the same operations done are not tried again. A history is split by what cannot affect another part of it
(one key of `accounts`, one dedup key, one message). An operation without an end may come at any time, or never.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torture.histories.order import FOREVER

State = Hashable
Op = dict[str, Any]
SOMEWHERE = ("somewhere",)
"""A position that was written by an operation without an end."""
Apply = Callable[[State], Iterator[State]]
"""What an operation may make of a state: nothing when its answer does not fit there."""


@dataclass(frozen=True, slots=True)
class Call:
    """An operation with its times, and what it does to a state."""

    start: int
    end: int
    apply: Apply
    what: str


def linearizable(calls: Sequence[Call], begin: State) -> str | None:
    """Returns None when the calls have an order that fits, else the call that no order could place."""
    calls = sorted(calls, key=lambda call: call.start)
    count, done, state = len(calls), 0, begin
    seen: set[tuple[int, State]] = {(0, begin)}
    path: list[tuple[int, State, Iterator[tuple[int, State]]]] = []
    deepest, stuck = -1, ""

    def steps(done: int, state: State) -> Iterator[tuple[int, State]]:
        """Every call that may come next: it began before the first end of those that are not done."""
        horizon = min((calls[at].end for at in range(count) if not done >> at & 1), default=FOREVER)
        for at in range(count):
            if done >> at & 1:
                continue
            if calls[at].start > horizon:
                return
            for after in calls[at].apply(state):
                yield at, after

    unfinished = sum(1 << at for at, call in enumerate(calls) if call.end == FOREVER)
    every = (1 << count) - 1
    options = steps(done, state)
    while done | unfinished != every:
        for at, after in options:
            reached = done | 1 << at
            if (reached, after) not in seen:
                seen.add((reached, after))
                path.append((done, state, options))
                done, state = reached, after
                options = steps(done, state)
                break
        else:
            if done.bit_count() > deepest:
                deepest = done.bit_count()
                stuck = min((calls[at] for at in range(count) if not done >> at & 1), key=lambda call: call.end).what
            if not path:
                return stuck
            done, state, options = path.pop()
    return None


# ── models: what the operations of a history do to a state ───────────────────────────────────────────────────────────
def part_without_order(operations: Sequence[Op], tolerance: float) -> Iterator[str]:
    """Names every part of a history that no order explains."""
    parts: dict[str, tuple[State, list[Call]]] = {}
    for part, begin, call in _calls(operations, tolerance):
        parts.setdefault(part, (begin, []))[1].append(call)
    for part, (begin, calls) in sorted(parts.items()):
        if (stuck := linearizable(calls, begin)) is not None:
            yield f"{part}: no order of its {len(calls)} operations fits; the search got no further than {stuck}"


def _calls(operations: Sequence[Op], tolerance: float) -> Iterator[tuple[str, State, Call]]:
    for op in operations:
        if "refused" in op or "failed" in op:
            continue
        what = f"{op['op']} {op['thread']}.{op['n']}"
        begin, end = op.get("committing", op["start"]), op.get("end", FOREVER)
        kind = op["op"]
        if kind in ("append", "fence", "transact"):
            yield "t", 0, Call(begin, end, _appends(op), what)
        elif kind in ("latest", "read") and "saw" in op:
            yield "t", 0, Call(begin, end, _sees(op["saw"]), what)
        elif kind in ("change", "look"):
            yield f"accounts {op['key']}", 0, Call(begin, end, _changes(op), what)
        elif kind == "dedup":
            yield f"once {op['key']}", (), Call(begin, end, _appends_once(op), what)
        elif kind == "push":
            yield f"work {op['labels'][0]}", "absent", Call(begin, end, _pushes, what)
        elif kind == "take" and op.get("message") is not None:
            yield f"work {op['message']}", "absent", Call(begin, end, _takes(op, tolerance), what)
        elif kind in ("ack", "release", "extend"):
            if kind == "extend" and "deadline" not in op:
                continue  # the lease was lost, or the process was killed
            yield f"work {op['taken']['message']}", "absent", Call(begin, end, _settles(op, tolerance), what)


def _sees(saw: int) -> Apply:
    return lambda state: iter((state,) if state == saw else ())


def _appends(op: Op) -> Apply:
    """A topic as a log: the state is how many events there are."""

    def apply(state: Any) -> Iterator[State]:
        if op.get("seqs", [state + 1])[0] == state + 1:
            yield state + len(op["labels"])

    return apply


def _changes(op: Op) -> Apply:
    """An entity as a register with compare-and-set: the state is the position of its newest event."""

    def apply(state: Any) -> Iterator[State]:
        # After a change that nobody saw the end of, the position is whatever the next operation says.
        if "seqs" in op:
            if state in (op["expected"], SOMEWHERE):
                yield op["seqs"][0]
        elif "saw" in op:
            if state in (op["saw"], SOMEWHERE) and op["saw"] != op.get("expected"):
                yield op["saw"]
        elif "end" not in op and op["op"] == "change" and state == op["expected"]:
            yield SOMEWHERE

    return apply


def _appends_once(op: Op) -> Apply:
    """A dedup key: the state is the position of its event, or nothing."""

    def apply(state: Any) -> Iterator[State]:
        if "seqs" not in op:
            yield state or SOMEWHERE
        elif (not state and not op["duplicate"]) or (op["duplicate"] and state in (tuple(op["seqs"]), SOMEWHERE)):
            yield tuple(op["seqs"])

    return apply


def _pushes(state: Any) -> Iterator[State]:
    if state == "absent":
        yield "ready"


def _takes(op: Op, tolerance: float) -> Apply:
    """A message: it is absent, ready, held by a take until a time, or settled."""

    def apply(state: Any) -> Iterator[State]:
        over = isinstance(state, tuple) and state[2] <= op["wall_end"] + tolerance
        if state == "ready" or over:
            yield op["thread"], op["n"], op["deadline"]

    return apply


def _settles(op: Op, tolerance: float) -> Apply:
    """An answer that a lease is lost fits a message that is not held; a release says nothing, and then does nothing."""

    def apply(state: Any) -> Iterator[State]:
        taken, kind = op["taken"], op["op"]
        held = isinstance(state, tuple) and state[:2] == (taken["thread"], taken["n"])
        over = not held or state[2] <= op.get("wall_end", FOREVER) + tolerance
        if held and op.get("done", True):
            yield "settled" if kind == "ack" else "ready" if kind == "release" else (*state[:2], op["deadline"])
        if over and (kind == "release" or not op.get("done", True)):
            yield state

    return apply
