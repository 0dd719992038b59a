"""The fold: events into a projection's state, a block's column of payloads at a time where handlers allow it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from operator import length_hint
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

import msgspec

from penstock.entity.projection.projection import Declared, Projection, check_projection, resolve
from penstock.errors import ConfigError
from penstock.events import Event
from penstock.journal.index.lookup import Piece
from penstock.journal.storage.block import Block
from penstock.schema import Schema, decode_event, schema_of, schema_of_type, stored_version

P = TypeVar("P", bound=Projection)

EVENT, PAYLOAD = "event", "payload"
_decode_one = msgspec.json.Decoder().decode


class _Step:
    """A handler of one kind, and what it asks for."""

    __slots__ = ("handler", "only", "schema", "wants")

    def __init__(self, handler: Callable[..., object], wants: tuple[object, ...], schema: Schema | None) -> None:
        self.handler = handler
        self.wants = wants
        self.only = wants[0] if len(wants) == 1 else None
        """The one thing it asks for, or None when there are several."""
        self.schema = schema

    def __call__(self, state: object, event: Event) -> None:
        self.handler(state, *[_value(want, event, self.schema) for want in self.wants])


class Fold(Generic[P]):
    """Runs a projection's handlers over events."""

    def __init__(self, projection: type[P]) -> None:
        self.projection = projection
        self.declared: Declared = projection.__projection__
        self._steps: dict[str, list[_Step]] = {}
        for handler, kinds in self.declared.handlers:
            for kind in kinds:
                name = _kind_name(kind)
                schema = schema_of(name)
                wants = _wants(handler, schema, self.declared)
                self._steps.setdefault(name, []).append(_Step(handler, wants, schema))

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds it has handlers for."""
        return frozenset(self._steps)

    def fold_events(self, state: P, events: Iterable[Event]) -> P:
        """Changes a state by events, one by one."""
        steps = self._steps
        for event in events:
            for step in steps.get(event.kind, ()):
                try:
                    step(state, event)
                except Exception as error:
                    self._explain(error, step, event)
                    raise
        return state

    def fold_pieces(self, state: P, pieces: Iterable[Piece]) -> tuple[P, int, int]:
        """Changes a state by rows of blocks; returns it with the last position and the number of events."""
        last = count = 0
        for block, rows in pieces:
            if not len(rows):
                continue
            self._fold_piece(state, block, rows)
            last = block.seq(rows[-1])
            count += len(rows)
        return state, last, count

    def fold_each(self, block: Any, states: Sequence[P]) -> None:
        """Changes many states by the events of a block (or of something like one): the n-th state by the n-th event."""
        handled = [self._steps.get(kind) for kind in block.wire.kinds]
        if not any(handled) or self._fold_each_column(block, states, handled):
            return
        codes = block.kind_codes
        for row, state in enumerate(states):
            if handled[codes[row]]:
                self.fold_events(state, (Event(block, row),))

    def _fold_each_column(self, block: Any, states: Sequence[P], handled: list[list[_Step] | None]) -> bool:
        """The same where every handler wants one payload: each kind's payloads are decoded together."""
        rows_of: dict[int, list[int]] = {code: [] for code, steps in enumerate(handled) if steps}
        for code in rows_of:
            steps = handled[code] or []
            if len(steps) != 1 or not _is_columnar(steps[0], block):
                return False
        codes = block.kind_codes
        for row in range(len(states)):
            if codes[row] in rows_of:
                rows_of[codes[row]].append(row)
        values: list[Any] = [None] * len(states)
        handlers: list[Callable[..., Any] | None] = [None] * len(handled)
        for code, rows in rows_of.items():
            step = (handled[code] or [])[0]
            column = _column(block, rows, step) if rows else []
            if column is None:
                return False
            handlers[code] = step.handler
            for row, value in zip(rows, column, strict=True):
                values[row] = value
        left = iter(range(len(states)))
        try:
            for row, state, value in zip(left, states, values, strict=False):
                handler = handlers[codes[row]]
                if handler is not None:
                    handler(state, value)
        except Exception as error:
            row = len(states) - 1 - length_hint(left)
            self._explain(error, (handled[codes[row]] or [])[0], Event(block, row))
            raise
        return True

    def apply(
        self,
        state: P,
        kind: str,
        payload: bytes | str,
        *,
        headers: Mapping[str, str] | None = None,
        binary: bool = False,
    ) -> None:
        """Changes a state by one event given as its parts: for those who have rows rather than events."""
        steps = self._steps.get(kind)
        if steps:
            event = _loose_event(kind, payload, headers, binary)
            self.fold_events(state, (event,))

    # ── a block at a time ────────────────────────────────────────────────────────────────────────────────────────────
    def _fold_piece(self, state: P, block: Block, rows: Sequence[int]) -> None:
        kinds = block.wire.kinds
        handled = [self._steps.get(kind) for kind in kinds]
        if not any(handled):
            return
        if len(kinds) == 1:
            if self._fold_column(state, block, rows, handled[0] or []):
                return
        elif self._fold_mixed(state, block, rows, handled):
            return
        codes = block.kind_codes
        self.fold_events(state, [Event(block, row) for row in rows if handled[codes[row]]])

    def _fold_column(self, state: P, block: Block, rows: Sequence[int], steps: list[_Step]) -> bool:
        """Folds rows of one kind whose one handler wants one payload; False when that is not the case."""
        if len(steps) != 1 or not _is_columnar(steps[0], block):
            return False
        step = steps[0]
        handler = step.handler
        left = iter(_payloads(block, rows))
        try:
            # One by one: a payload decoded, handled and dropped is still in the processor's cache, a hundred are not.
            for value in map(_decoder(step), left):
                handler(state, value)
        except Exception as error:
            self._explain_payload(error, step, Event(block, rows[len(rows) - 1 - length_hint(left)]))
            raise
        return True

    def _fold_mixed(self, state: P, block: Block, rows: Sequence[int], handled: list[list[_Step] | None]) -> bool:
        """The same for several kinds."""
        chosen: dict[int, tuple[Callable[..., object], Callable[[bytes], object]]] = {}
        for code, steps in enumerate(handled):
            if steps:
                if len(steps) != 1 or not _is_columnar(steps[0], block):
                    return False
                chosen[code] = (steps[0].handler, _decoder(steps[0]))
        codes = block.kind_codes
        own = [row for row in rows if codes[row] in chosen]
        left = iter(_payloads(block, own))
        try:
            for row, raw in zip(own, left, strict=True):
                handler, decode = chosen[codes[row]]
                handler(state, decode(raw))
        except Exception as error:
            row = own[len(own) - 1 - length_hint(left)]
            self._explain_payload(error, (handled[codes[row]] or [])[0], Event(block, row))
            raise
        return True

    def _explain_payload(self, error: Exception, step: _Step, event: Event) -> None:
        """Says whose fault a failure is: the stored payload's, when it does not decode, else the handler's."""
        if isinstance(error, msgspec.MsgspecError | UnicodeDecodeError | ValueError):
            try:
                _value(step.only, event, step.schema)
            except Exception as poison:
                self._explain(poison, step, event)
                raise
        self._explain(error, step, event)

    def _explain(self, error: Exception, step: _Step, event: Event) -> None:
        name = f"{self.projection.__qualname__}.{step.handler.__name__}"
        error.add_note(f"in projection handler {name}, for event {event.seq} of topic {event.topic!r} ({event.kind!r})")


_folders: WeakKeyDictionary[type[Any], tuple[tuple[Schema | None, ...], Fold[Any]]] = WeakKeyDictionary()


def folder_of(projection: type[P]) -> Fold[P]:
    """How to fold a projection; made once, and again when types were declared for its kinds since."""
    check_projection(projection)
    schemas = tuple(schema_of(_kind_name(kind)) for _, kinds in projection.__projection__.handlers for kind in kinds)
    known = _folders.get(projection)
    if known is None or known[0] != schemas:
        known = _folders[projection] = (schemas, Fold(projection))
    return known[1]


def _kind_name(kind: Any) -> str:
    if isinstance(kind, str):
        return kind
    schema = schema_of_type(kind)
    if schema is None:
        raise ConfigError(f"{kind.__qualname__} is no longer a declared event type")
    return schema.kind


def _wants(handler: Callable[..., object], schema: Schema | None, declared: Declared) -> tuple[object, ...]:
    """What each parameter of a handler after self asks for: the event, the plain payload, or a typed one."""
    import inspect

    parameters = list(inspect.signature(handler).parameters.values())[1:]
    if not parameters:
        raise ConfigError(f"handler {handler.__qualname__} must take the event (or its payload) besides self")
    wants: list[object] = []
    for parameter in parameters:
        if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            raise ConfigError(
                f"handler {handler.__qualname__} has a parameter {parameter.name!r} that cannot be filled"
            )
        wants.append(_want(handler, parameter, schema, declared))
    return tuple(wants)


def _want(handler: Callable[..., Any], parameter: Any, schema: Schema | None, declared: Declared) -> Any:
    annotation = parameter.annotation
    if annotation is not parameter.empty:
        if schema is not None and schema.type is not None and annotation == schema.type.__name__:
            return schema.type
        known = declared.types.get((handler.__qualname__, parameter.name))
        found = known if known is not None else resolve(annotation, handler.__globals__)
        if isinstance(found, type) and schema_of_type(found) is not None:
            return found
        if found is None and schema is not None and str(annotation).rpartition(".")[2] not in ("Event", "Any", "None"):
            raise ConfigError(
                f"{annotation!r}, which handler {handler.__qualname__} asks for, cannot be found: define the class at "
                "the top of a module, or call the parameter event or payload without naming a type"
            )
    return PAYLOAD if parameter.name == PAYLOAD else EVENT


def _value(want: Any, event: Event, schema: Schema | None) -> Any:
    if want is EVENT:
        return event
    if want is not PAYLOAD:
        return decode_event(event, want)
    payload = event.payload
    if schema is None or schema.newest == 1 or event.binary:
        return payload
    version = stored_version(event.headers, event.topic, event.seq)
    return schema.upcast(payload, version, f"event {event.seq} of topic {event.topic!r}")


def _is_columnar(step: _Step, block: Block) -> bool:
    """Whether the payloads of a block can be decoded together for a handler."""
    want = step.only
    if want is None or want is EVENT or block.wire.binary is not None:
        return False
    schema = step.schema
    if schema is not None and schema.newest > 1:
        return False
    return want is PAYLOAD or (schema is not None and want is schema.type)


def _payloads(block: Block, rows: Sequence[int]) -> list[bytes]:
    """The stored payloads of some rows."""
    if not len(rows):
        return []
    bounds, payload = block.payload_offsets, bytes(block.payload)  # slices of bytes cost half of a view's
    if isinstance(rows, range) and rows.step == 1:
        return [payload[start:stop] for start, stop in pairwise(bounds[rows.start : rows.stop + 1])]
    return [payload[bounds[row] : bounds[row + 1]] for row in rows]


def _decoder(step: _Step) -> Callable[[bytes], object]:
    """How a stored payload becomes the one thing a handler asks for."""
    if step.only is PAYLOAD:
        return _decode_one
    assert step.schema is not None and step.schema.decode is not None
    return step.schema.decode


def _column(block: Block, rows: Sequence[int], step: _Step) -> list[object] | None:
    """The decoded payloads of some rows; None when one does not decode, for the slow way to say which."""
    try:
        return list(map(_decoder(step), _payloads(block, rows)))
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError):
        return None


def _loose_event(kind: str, payload: bytes | str, headers: Mapping[str, str] | None, binary: bool) -> Event:
    from penstock.journal.storage.block import build_wire
    from penstock.journal.storage.wire import Columns

    columns = Columns([kind], [payload.encode() if isinstance(payload, str) else bytes(payload)])
    if headers:
        columns.headers = [dict(headers)]
    if binary:
        columns.binary = [True]
    return Event(Block(build_wire(columns, 1, 0, 0), ""), 0)
