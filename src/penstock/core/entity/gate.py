"""Gates: functions that see every draft for a topic before it is appended, and refuse it by raising Denied.

Gates run in the caller's thread, before the call waits for the writer, for every kind of append: append, submit,
outbox, fence, transaction, queue. One refusal refuses the whole batch. A gate that fails with another error also
refuses, because the draft could not be checked.

A function given to `Topic.gate` belongs to one open journal. Spark's commit to a local journal runs in a process of its
own, and a served journal is written by its server. Both find declared gates by name. Installed packages name gates in
the entry point group `penstock.gates`; a write, a pipeline and `penstock serve` name gates as well.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING

import msgspec

from penstock.core.entity.fence import Fences
from penstock.core.events import Draft
from penstock.core.journal.prepare import encode_payload, is_binary, prepare
from penstock.core.journal.writer import WriteRequest
from penstock.core.names import check_items, check_kind, check_name
from penstock.core.schema import encode_event, schema_of_type
from penstock.errors import ConfigError, Denied, PenstockError

if TYPE_CHECKING:
    from penstock.core.journal.core import JournalCore


Check = Callable[[Draft], None]

REFUSAL = "append.denied"
"""The kind of the events that record refusals."""


class Gate(msgspec.Struct, frozen=True):
    """A check on a topic's drafts."""

    check: Check
    name: str
    kinds: frozenset[str] | None
    """The kinds that the gate checks; None for all."""
    record: str | None
    """The topic in which refusals are recorded."""

    def describe(self) -> str:
        kinds = f" ({', '.join(sorted(self.kinds))})" if self.kinds else ""
        return f"{self.name}{kinds}" + (f" → {self.record}" if self.record else "")


class Gates:
    """The gates of a journal's topics. They belong to this open journal, not to the store."""

    def __init__(self, core: JournalCore, fences: Fences, lock: threading.RLock) -> None:
        self._core = core
        self._fences = fences
        self._by_topic: dict[str, tuple[Gate, ...]] = {}
        self._lock = lock

    def add(
        self,
        topic: str,
        check: Check,
        *,
        kind: str | type | Iterable[str | type] | None = None,
        name: str | None = None,
        record: str | None = None,
    ) -> None:
        if not callable(check):
            raise ConfigError(f"a gate must be a function that takes a draft, not {check!r}")
        if record is not None:
            check_name(record)
            if record == topic:
                raise ConfigError(f"the refusals of topic {topic!r} cannot be recorded in itself: name another topic")
        gate = Gate(check, name or str(getattr(check, "__qualname__", check)), kinds_of(kind), record)
        with self._lock:
            self._by_topic[topic] = (*self._by_topic.get(topic, ()), gate)
            if self.guard not in self._core.guards:
                self._core.guards = [*self._core.guards, self.guard]

    def remove(self, topic: str, check: Check) -> bool:
        """Removes a check from a topic; returns False for an unknown check."""
        with self._lock:
            gates = self._by_topic.get(topic, ())
            left = tuple(gate for gate in gates if gate.check != check)
            if left:
                self._by_topic[topic] = left
            else:
                self._by_topic.pop(topic, None)
            if not self._by_topic:
                self._core.guards = [guard for guard in self._core.guards if guard != self.guard]
            return len(left) != len(gates)

    def describe(self) -> dict[str, list[str]]:
        return {topic: [gate.describe() for gate in gates] for topic, gates in sorted(self._by_topic.items())}

    def __bool__(self) -> bool:
        return bool(self._by_topic)

    @property
    def topics(self) -> Container[str]:
        """The topics that have gates."""
        return self._by_topic

    def of(self, topic: str, kind: str | None = None) -> tuple[Gate, ...]:
        """Returns the gates of a topic; with `kind`, the gates that see drafts of this kind."""
        gates = self._by_topic.get(topic, ())
        return gates if kind is None else tuple(one for one in gates if one.kinds is None or kind in one.kinds)

    def guard(self, topic: str, drafts: Sequence[Draft]) -> None:
        """Shows each draft to each gate of its topic."""
        if not self.of(topic):
            return
        for draft in drafts:
            plain = _plain(draft, topic)
            encoded = encode_payload(plain.payload)
            for gate in self.of(topic, str(plain.kind)):
                self.ask(gate, plain, encoded)

    def ask(self, gate: Gate, draft: Draft, encoded: bytes) -> None:
        """Shows a draft to a gate, with its payload as it will be stored; records a refusal and raises Denied."""
        try:
            gate.check(_copy(draft, encoded))
        except Denied as denied:
            self._record(gate, draft, denied)
            raise
        except PenstockError as error:
            error.add_note(f"in gate {gate.name} of topic {draft.topic!r}")
            raise
        except Exception as error:
            defect = Denied(f"gate {gate.name} of topic {draft.topic!r} failed: {error!r}")
            self._record(gate, draft, defect)
            raise defect from error

    def _record(self, gate: Gate, draft: Draft, denied: Denied) -> None:
        if gate.record is None:
            return
        refusal = {
            "topic": draft.topic,
            "gate": gate.name,
            "reason": denied.reason,
            "kind": draft.kind,
            "key": draft.key,
            "payload": None if isinstance(draft.payload, bytes | bytearray | memoryview) else draft.payload,
        }
        record = gate.record
        batch = prepare((Draft(REFUSAL, refusal, key=draft.key),), record, None)
        # Inside a transaction the record is appended afterwards, whatever the outcome, so no caller waits for it here.
        self._fences.afterwards(
            lambda: self._core.writer.submit(
                WriteRequest(lambda commit: commit.append(record, batch), batch.size), nested=True
            )
        )


def _copy(draft: Draft, encoded: bytes) -> Draft:
    """Returns a copy of a draft for one gate, which may change it; the payload is decoded as for readers."""
    payload = encoded if is_binary(draft.payload) else msgspec.json.decode(encoded)
    headers = dict(draft.headers) if isinstance(draft.headers, Mapping) else draft.headers
    return msgspec.structs.replace(draft, payload=payload, headers=headers)


def _plain(draft: Draft, topic: str) -> Draft:
    """Returns a draft with its kind as text."""
    if isinstance(draft.kind, str):
        return msgspec.structs.replace(draft, topic=topic)
    kind, payload, headers = encode_event(draft.kind)
    plain = msgspec.to_builtins(payload)
    return msgspec.structs.replace(
        draft, kind=kind, payload=plain, headers={**(draft.headers or {}), **headers} or None, topic=topic
    )


def kinds_of(kind: str | type | Iterable[str | type] | None) -> frozenset[str] | None:
    """Returns the names of the kinds a gate sees; None for all."""
    if kind is None:
        return None
    named: list[str] = []
    for one in (kind,) if isinstance(kind, str | type) else check_items(kind, "kind"):
        if isinstance(one, type):
            schema = schema_of_type(one)
            if schema is None:
                raise ConfigError(
                    f"{one.__qualname__} is not a declared event type: use @penstock.event or name its kind"
                )
            named.append(schema.kind)
        else:
            named.append(check_kind(one))
    if not named:
        raise ConfigError("a gate with an empty list of kinds would never look at anything: omit kind= for all kinds")
    return frozenset(named)


# ── Gates that are found by name: declared in a module, for whichever process writes to their topics ──


GROUP = "penstock.gates"
"""The entry point group of gates that bind wherever their package is installed."""
_LIKE = "shop.rules:only_positive"


class DeclaredGate(msgspec.Struct, frozen=True):
    """A gate with its topics; it is still callable, for tests and for `Topic.gate`."""

    check: FunctionType
    topics: tuple[str, ...]
    kinds: frozenset[str] | None = None
    record: str | None = None

    def __call__(self, draft: Draft) -> None:
        self.check(draft)

    @property
    def name(self) -> str:
        """The name of the gate: `module:name`, or `file.py:name` when the file cannot be imported as a module."""
        module, title = self.check.__module__, self.check.__qualname__
        if "<" in title:
            raise ConfigError(f"the gate {title} cannot be found by its name: declare it at the top level of a module")
        found = sys.modules.get(module)
        if found is None or found.__spec__ is None or module == "__main__":
            file = None if found is None else found.__file__
            if file is None:
                raise ConfigError(f"the gate {title} is in no file that another process could read")
            module = str(Path(file).resolve())
        return f"{module}:{title}"


def gate(
    *topics: str, kind: str | type | Iterable[str | type] | None = None, record: str | None = None
) -> Callable[[Check], DeclaredGate]:
    """Declares a gate of topics (or queues) that is found by name, in every process that writes to them.

        @gate("orders", kind="placed", record="refusals")
        def only_positive(draft):
            if draft.payload["total"] <= 0:
                raise Denied("a total must be positive")

    The gate applies to Spark's writes that name it (`gates=` of a flow, the sink's option `gates`) and to a server that
    was started with `penstock serve --gates shop.rules:only_positive`. A gate in the entry point group `penstock.gates`
    of an installed package applies to every write of Spark's and to every server. `kind` and `record` are as in
    `Topic.gate`.
    """
    if not topics or not all(isinstance(name, str) for name in topics):
        raise ConfigError('a gate is declared for topics: @gate("orders")')
    for name in topics:
        check_name(name, "topic")
    if record is not None and check_name(record, "topic") in topics:
        raise ConfigError(f"the refusals of topic {record!r} cannot be recorded in itself: name another topic")
    kinds = kinds_of(kind)

    def declare(check: Check) -> DeclaredGate:
        if not isinstance(check, FunctionType):
            raise ConfigError(f"@gate(…) goes above a function that takes a draft, not {check!r:.80}")
        return DeclaredGate(check, topics, kinds, record)

    return declare


def check_gate_names(names: Iterable[str]) -> tuple[str, ...]:
    """Checks the names of gates; ConfigError for one that is malformed or given twice."""
    found: list[str] = []
    for name in names:
        module, colon, title = name.rpartition(":")
        if not module or not colon or not title:
            raise ConfigError(f"a gate is named module:name, like {_LIKE}, not {name!r}")
        if name in found:
            raise ConfigError(f"the gate {name} is named twice")
        found.append(name)
    return tuple(found)


@cache
def installed_gates() -> tuple[str, ...]:
    """Returns the names of the gates of installed packages, which are searched once."""
    from importlib.metadata import entry_points

    return tuple(sorted({entry.value.replace(" ", "") for entry in entry_points(group=GROUP)}))


def with_installed(names: Iterable[str]) -> tuple[str, ...]:
    """Returns the given names after the names of installed packages; raises ConfigError for a name that was given
    twice.
    """
    return tuple(dict.fromkeys((*installed_gates(), *check_gate_names(names))))


def load_gates(names: Iterable[str]) -> dict[str, DeclaredGate]:
    """Returns gates by their names; a ConfigError says which gate cannot be loaded, and why."""
    return {name: _load(name) for name in names}


def add_gates(gates: Gates, declared: Mapping[str, DeclaredGate]) -> None:
    """Adds declared gates to the topics that they name."""
    for name, one in declared.items():
        for topic in one.topics:
            gates.add(topic, one, kind=one.kinds, name=name, record=one.record)


def names_in(described: Mapping[str, Iterable[str]]) -> set[str]:
    """Returns the names of the gates in a journal's description."""
    return {text.split(" ", 1)[0] for texts in described.values() for text in texts}


def _load(name: str) -> DeclaredGate:
    module, _, title = name.rpartition(":")
    found: object = _run_file(name, Path(module)) if module.endswith(".py") else _import(name, module)
    for part in title.split("."):
        found = getattr(found, part, None)
    if found is None:
        raise ConfigError(f"the gate {name} is not there: {module} has no {title}")
    if not isinstance(found, DeclaredGate):
        raise ConfigError(f'{name} is no gate: put @penstock.gate("orders") above it, which says whose drafts it sees')
    return found


def _import(name: str, module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module}.".startswith(f"{error.name}."):
            raise ConfigError(
                f"the gate {name} cannot be imported: there is no module {error.name!r} where this Python searches "
                "(PYTHONPATH, installed packages)"
            ) from None
        raise _broken(name, error) from error
    except Exception as error:
        raise _broken(name, error) from error


def _run_file(name: str, file: Path) -> ModuleType:
    """Returns the module of a file that cannot be imported by name, for example a pipeline's file."""
    module = ModuleType(f"penstock_gates_{file.stem}")
    module.__file__ = str(file)
    sys.modules[module.__name__] = module  # declarations in the file look up their file there
    try:
        exec(compile(file.read_bytes(), str(file), "exec", dont_inherit=True), vars(module))
    except FileNotFoundError as error:
        if error.filename == str(file):
            raise ConfigError(f"the gate {name} cannot be read: there is no file {file}") from None
        raise _broken(name, error) from error
    except Exception as error:
        raise _broken(name, error) from error
    finally:
        del sys.modules[module.__name__]
    return module


def _broken(name: str, error: Exception) -> ConfigError:
    import traceback

    line = traceback.extract_tb(error.__traceback__)[-1]
    return ConfigError(f"the gate {name} cannot be imported: {error!r} ({line.filename}, line {line.lineno})")
