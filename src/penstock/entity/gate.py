"""Gates: functions that see every draft for a topic before it is appended, and refuse it by raising Denied.

They run in the caller's thread, before anything waits for the writer, whichever way the draft comes: append, submit,
outbox, fence, transaction, queue. One refusal refuses the whole batch. A gate that fails otherwise refuses too: what
could not be checked is not let in.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from penstock.errors import ConfigError, Denied, PenstockError
from penstock.events import Draft
from penstock.journal.prepare import encode_payload, is_binary, prepare
from penstock.journal.writer import WriteRequest
from penstock.names import check_kind, check_name
from penstock.schema import encode_event, schema_of_type

if TYPE_CHECKING:
    import threading

    from penstock.entity.fence import Fences
    from penstock.journal.core import JournalCore


Check = Callable[[Draft], None]

REFUSAL = "append.denied"
"""The kind of the events that record refusals."""


class Gate(msgspec.Struct, frozen=True):
    """A check on a topic's drafts."""

    check: Check
    name: str
    kinds: frozenset[str] | None
    """The kinds it looks at; None for all."""
    record: str | None
    """The topic its refusals are recorded in."""

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
        """Takes a check off a topic; False when it was not there."""
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
        """The gates of a topic; with `kind`, those that see drafts of that kind."""
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
        """Shows a draft, whose kind is text, to a gate, with its payload as it will be stored; Denied, and recorded."""
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
        # Inside a transaction the record comes after it, whatever becomes of it: so no caller waits for it here.
        self._fences.afterwards(
            lambda: self._core.writer.submit(
                WriteRequest(lambda commit: commit.append(record, batch), batch.size), nested=True
            )
        )


def _copy(draft: Draft, encoded: bytes) -> Draft:
    """What one gate sees, and may spoil: nothing in it is the caller's, the payload is as it will be read."""
    payload = encoded if is_binary(draft.payload) else msgspec.json.decode(encoded)
    headers = dict(draft.headers) if isinstance(draft.headers, Mapping) else draft.headers
    return msgspec.structs.replace(draft, payload=payload, headers=headers)


def _plain(draft: Draft, topic: str) -> Draft:
    """A draft with its kind as text."""
    if isinstance(draft.kind, str):
        return msgspec.structs.replace(draft, topic=topic)
    kind, payload, headers = encode_event(draft.kind)
    plain = msgspec.to_builtins(payload)
    return msgspec.structs.replace(
        draft, kind=kind, payload=plain, headers={**(draft.headers or {}), **headers} or None, topic=topic
    )


def kinds_of(kind: str | type | Iterable[str | type] | None) -> frozenset[str] | None:
    """The names of the kinds a gate sees; None for all."""
    if kind is None:
        return None
    named: list[str] = []
    for one in (kind,) if isinstance(kind, str | type) else kind:
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
