"""The places a journal may be, asked the same question one after the other; their answers must be the same.

A home is a store that is open twice, where its engine allows that: whatever one opening remembers of the other's past
is found out. Ids and tokens are random, so each home keeps a name for every one it has seen, and answers are compared
by those names.
"""

from __future__ import annotations

import dataclasses
import itertools
import shutil
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from unittest import mock

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

import penstock
from dead_store import copy_as_it_is
from penstock import Delivery, Event, Journal, ManualClock, Projection, Receipt, ResultTicket, Subscription
from penstock.core.journal.upkeep.housekeeper import Housekeeper
from penstock.core.queue.operations.repair import Redriven
from penstock.errors import PenstockError
from server.over_http.shared_server import SharedServer

ONE_PROCESS = ("rocksdb", "file", "slatedb")
"""Engines whose stores one journal at a time may write."""
_stores = itertools.count()
F = TypeVar("F", bound=Callable[..., None])


class Raised(msgspec.Struct, frozen=True):
    """An answer that is an error: its type, and the details a program may ask it for."""

    error: type[Exception]
    details: dict[str, Any] = {}


class Home:
    """A store in this process."""

    served = False

    def __init__(self, scheme: str, clock: ManualClock, folder: Path, id_of: Callable[[str, int], str]) -> None:
        self.scheme = self.name = scheme
        self._clock = clock
        self._folder = folder
        self._id_of = id_of
        self._crashes = 0
        self._abandoned: list[Journal] = []
        self._names: dict[str, str] = {}
        self._real: dict[str, str] = {}
        self._tokens = itertools.count(1)
        self.url = f"memory:model-{next(_stores)}" if scheme == "memory" else self._place("store")
        self.stores = [self._open() for _ in range(1 if scheme in ONE_PROCESS else 2)]

    def __repr__(self) -> str:
        return self.name

    def _place(self, name: str) -> str:
        return f"{self.scheme}:{self._folder / name}"

    def _open(self) -> Journal:
        with mock.patch.object(Housekeeper, "begin"):  # a thread of its own would come at another step each time
            journal = penstock.open(self.url, clock=self._clock, durability="process")
        # Housekeeping happens when the machine says so: the model must know of it.
        journal._core.housekeeper.request = lambda topic: None  # type: ignore[attr-defined]
        return journal

    def store(self, which: int) -> Journal:
        """The journal itself, for what is asked where the store is."""
        return self.stores[which % len(self.stores)]

    def journal(self, which: int) -> Journal:
        """The journal as a program has it."""
        return self.store(which)

    # ── ending ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def reopen(self, which: int, *, abandon: bool) -> None:
        """Ends one opening and makes another; `abandon`: as when a process dies, nobody closes anything."""
        which %= len(self.stores)
        if abandon and self.scheme not in ONE_PROCESS:
            self._abandoned.append(self.stores[which])
        else:
            self.stores[which].close()
        self.stores[which] = self._open()

    def crash(self) -> None:
        """Goes on with a copy of the files as they are: what a killed process leaves behind.

        Not of RocksDB, whose own threads exchange files while they are copied; the crash tests kill it for real.
        """
        if self.scheme in ("memory", "rocksdb"):
            for which in range(len(self.stores)):
                self.reopen(which, abandon=True)
            return
        for store in self.stores if self.scheme == "slatedb" else ():
            store.flush()  # a lease is in memory there until the next commit that waits: without it, a take is undone
        self._crashes += 1
        old, name = Path(self.url.partition(":")[2]), f"crashed-{self._crashes}"
        if old.is_dir():
            copy_as_it_is(old, self._folder / name)
        else:
            for suffix in ("", "-wal"):
                shutil.copy(f"{old}{suffix}", f"{self._folder / name}{suffix}")
        for store in self.stores:
            store.close()
        self.url = self._place(name)
        self.stores = [self._open() for _ in self.stores]

    def close(self) -> None:
        for journal in [*self._abandoned, *self.stores]:
            journal.close()

    # ── names ────────────────────────────────────────────────────────────────────────────────────────────────────────
    def _call(self, real: str, name: str) -> None:
        if real not in self._names:
            self._names[real] = name
            self._real[name] = real

    def real(self, name: Any) -> Any:
        """The id or the token that has a name here; anything else as it is."""
        return self._real.get(name, name) if isinstance(name, str) else name

    def plain(self, answer: Any) -> Any:
        """An answer as values that can be compared with another home's."""
        match answer:
            case Redriven():
                return int(answer), self.plain(answer.left)
            case None | int() | float() | bytes() | datetime() | Raised():
                return answer
            case str():
                return self._names.get(answer, answer)
            case Event():
                self._call(answer.id, self._id_of(answer.topic, answer.seq))
                return self.plain(answer.as_dict())
            case Receipt():
                self._call(answer.id, self._id_of(answer.topic, answer.seq))
                return self.plain([answer.topic, answer.seq, answer.id, answer.correlation_id, answer.duplicate])
            case ResultTicket():
                receipt = self.plain(answer.receipt)
                self._call(f"{answer.queue.name}.results#{answer._token}", f"header of the reply to {receipt[2]}")
                return receipt
            case Delivery():
                if answer.token not in self._names:
                    self._call(answer.token, f"token {next(self._tokens)}")
                fields = ("token", "attempt", "group", "consumer", "deadline", "event")
                return {field: self.plain(getattr(answer, field)) for field in fields}
            case Subscription():
                return "a subscription"
            case Projection():
                return dataclasses.asdict(answer)  # type: ignore[call-overload]
            case msgspec.Struct():
                return self.plain(msgspec.structs.asdict(answer))
            case dict():
                return {self.plain(key): self.plain(value) for key, value in answer.items()}
            case list() | tuple() | Iterator():
                return [self.plain(one) for one in answer]
        raise AssertionError(f"what is {answer!r}?")

    def raised(self, error: Exception) -> Raised:
        """An error as an answer."""
        return Raised(type(error), self.plain(vars(error)) if isinstance(error, PenstockError) else {})


class ServedHome(Home):
    """A store in memory behind a server in this process: what a program has of it are clients, one for each opening."""

    served = True

    def __init__(
        self, server: SharedServer, clock: ManualClock, folder: Path, id_of: Callable[[str, int], str]
    ) -> None:
        super().__init__("memory", clock, folder, id_of)
        self.name = "http"
        self._server = server
        self._urls = [server.move_in(store) for store in self.stores]
        self._clients = [penstock.open(url) for url in self._urls]

    def journal(self, which: int) -> Journal:
        return self._clients[which % len(self._clients)]

    def reopen(self, which: int, *, abandon: bool) -> None:
        which %= len(self.stores)
        self._clients[which].close()
        self._server.move_out(self._urls[which])
        super().reopen(which, abandon=abandon)
        self._urls[which] = self._server.move_in(self.stores[which])
        self._clients[which] = penstock.open(self._urls[which])

    def close(self) -> None:
        for client, url in zip(self._clients, self._urls, strict=True):
            client.close()
            self._server.move_out(url)
        super().close()


class Step(NamedTuple):
    """Something a program may do: how often, when, and with which arguments."""

    name: str
    weight: int
    when: Callable[[Any], object]
    given: st.SearchStrategy[dict[str, Any]]

    def __repr__(self) -> str:
        return self.name


def step(
    weight: int, *, when: Callable[[Any], object] = lambda self: True, **given: st.SearchStrategy[Any]
) -> Callable[[F], F]:
    """Makes a method a step of programs.

    A rule of hypothesis has no weight, and half of them are left out of every program: with some forty rules and few
    examples most programs then do little.
    """

    def note(method: F) -> F:
        STEPS.append(Step(method.__name__, weight, when, st.fixed_dictionaries(given)))
        return method

    return note


STEPS: list[Step] = []


class Lockstep(RuleBasedStateMachine):
    """Asks every home, and has one answer."""

    homes: list[Home]

    def wants(self, step: Step) -> bool:
        """Whether this program has such steps."""
        return True

    @rule(data=st.data())
    def do(self, data: st.DataObject) -> None:
        """The next step of the program."""
        possible = [one for one in STEPS if one.when(self) and self.wants(one)]
        chosen: Step = data.draw(st.sampled_from([one for one in possible for _ in range(one.weight)]))
        getattr(self, chosen.name)(**data.draw(chosen.given, label=chosen.name))

    def ask(self, question: Callable[[Home], object], homes: list[Home] | None = None) -> Any:
        """What all homes answer, as plain values; the answers as they were are left in `raw`, for deliveries."""
        asked = homes or self.homes
        self.raw: list[Any] = []
        answers: list[Any] = []
        for home in asked:
            try:
                raw = question(home)
                self.raw.append(raw)
                answers.append(home.plain(raw))
            except AssertionError:
                raise
            except Exception as error:
                self.raw.append(error)
                answers.append(home.raised(error))
        for home, answer in zip(asked, answers, strict=True):
            assert answer == answers[0], f"{home} answers {answer!r}, {asked[0]} {answers[0]!r}"
        return answers[0]
