"""Projections: state folded from events, declared as a class.

    class Account(Projection):
        balance: int = 0
        owner: str | None = None
        closed_at: datetime | None = None

        @on("account.opened")
        def opened(self, event: Opened) -> None:      # a declared event type: the typed payload
            self.owner = event.owner

        @on("deposited", "corrected")
        def add(self, payload) -> None:               # a parameter called payload: the plain payload
            self.balance += payload["amount"]

        @on("closed")
        def closed(self, event) -> None:              # anything else: the event itself
            self.closed_at = event.occurred_at

Every field has a type and a default: the state before the first event. An attribute without a type, or an attribute
that only a handler sets, would not be saved; both are refused. `ClassVar` marks an attribute that is no state. A
handler may have several parameters, in any order. Handlers must only change `self`: they run again whenever a state is
rebuilt, also on Spark.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import compress, pairwise, repeat
from operator import call, length_hint
from types import FunctionType
from typing import Any, ClassVar, Generic, Self, TypeVar, dataclass_transform
from weakref import WeakKeyDictionary

import msgspec

from penstock.core.events import ERASED_AT, Event
from penstock.core.journal.blocks import Block
from penstock.core.journal.index.memtable import Piece
from penstock.core.names import check_kind, is_whole
from penstock.core.schema import Schema, decode_event, schema_of, schema_of_type, stored_version
from penstock.errors import ConfigError

F = TypeVar("F", bound=Callable[..., object])

_KINDS = "__penstock_kinds__"
_MAX_NAME_BYTES = 80


class Declared:
    """The declaration of a projection class: its name, version, handlers."""

    __slots__ = ("fields", "fingerprint", "handlers", "name", "types", "version")

    def __init__(
        self, name: str, version: int, handlers: list[tuple[Callable[..., object], tuple[object, ...]]]
    ) -> None:
        self.name = name
        self.version = version
        self.handlers = handlers
        """The handler functions, each with its kinds (or declared types)."""
        self.types: dict[tuple[str, str], object] = {}
        """The types of the annotations of handlers' parameters, as far as they are known where the class is
        declared.
        """
        self.fields: frozenset[str] = frozenset()
        """The fields of a state."""
        self.fingerprint = 0
        """A number that changes with fields or kinds: states that were saved under another number are not used."""


@dataclass_transform(kw_only_default=False)
class Projection:
    """State folded from events: declare fields with defaults, handle kinds with `@on`.

    In `class Account(Projection, version=2)`, a new version makes every saved state be folded anew. Saved states are
    stored under `name=`, by default the name of the class.
    """

    __projection__: ClassVar[Declared]

    def __init_subclass__(cls, *, version: int = 1, name: str | None = None, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        name = cls.__name__ if name is None else name
        if not isinstance(name, str) or not name or len(name.encode()) > _MAX_NAME_BYTES:
            raise ConfigError(f"a projection's name must be text of 1 to {_MAX_NAME_BYTES} bytes, not {name!r}")
        if not is_whole(version) or not 1 <= version < 1 << 31:
            raise ConfigError(
                f"the version of projection {name!r} must be a whole number of at least 1, not {version!r}"
            )
        # Imported here and below: most programs that import penstock declare no projection.
        import dataclasses

        caller = sys._getframe(1)
        names = {**caller.f_globals, **caller.f_locals}
        _resolve_fields(cls, names)
        _check_attributes(cls)
        _prepare_defaults(cls)
        dataclasses.dataclass(cls)
        declared = Declared(name, version, _handlers(cls))
        for base in reversed(cls.__mro__[1:]):
            if "__projection__" in vars(base):
                declared.types.update(vars(base)["__projection__"].types)
        for handler, _ in declared.handlers:
            declared.types.update(_resolved(handler, names))
        cls.__projection__ = declared
        declared.fields = frozenset(field.name for field in dataclasses.fields(cls))  # type: ignore[arg-type]
        shape = [(field.name, _type_name(field.type)) for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
        kinds = sorted(str(kind) for _, kinds in declared.handlers for kind in kinds)
        declared.fingerprint = zlib.crc32(repr((shape, kinds)).encode())

    @classmethod
    def fold(cls, events: Iterable[Event], state: Self | None = None) -> Self:
        """Returns the state after some events, beginning with `state` (which is changed) or with the defaults."""
        return folder_of(cls).fold_events(cls() if state is None else state, events)


def on(*kinds: object) -> Callable[[F], F]:
    """Makes a method of a projection the handler of some kinds (given as text, or as declared event types)."""
    if not kinds:
        raise ConfigError("@on needs at least one kind")
    for kind in kinds:
        if isinstance(kind, type):
            if schema_of_type(kind) is None:
                raise ConfigError(f"@on({kind.__name__}): not a declared event type; use @event, or name a kind")
        else:
            check_kind(kind)

    def mark(method: F) -> F:
        if not isinstance(method, FunctionType):
            raise ConfigError(f"@on must stand before a method, not {method!r}")
        setattr(method, _KINDS, (*getattr(method, _KINDS, ()), *kinds))
        return method

    return mark


def check_projection(projection: object) -> None:
    if not isinstance(projection, type) or not issubclass(projection, Projection) or projection is Projection:
        raise ConfigError(f"a projection is a class derived from penstock.Projection, not {projection!r}")


def _handlers(cls: type[object]) -> list[tuple[Callable[..., object], tuple[object, ...]]]:
    """Returns the handlers of a class and its bases, bases first; an overridden method counts once."""
    found: dict[str, tuple[object, ...]] = {}
    for base in reversed(cls.__mro__):
        for name, value in vars(base).items():
            kinds = getattr(value, _KINDS, None)
            if kinds is not None:
                found[name] = kinds
    handlers = [
        (getattr(cls, name), kinds) for name, kinds in found.items() if isinstance(getattr(cls, name), FunctionType)
    ]
    if not handlers:
        raise ConfigError(f"projection {cls.__name__} handles nothing: mark at least one method with @on(kind)")
    return handlers


_OF_TYPING = frozenset({"_abc_impl", "_is_protocol", "_is_runtime_protocol"})
"""The attributes that Python gives to classes that are generic, abstract or protocols."""


def _check_attributes(cls: type[object]) -> None:
    """Refuses attributes that look like state but would not be saved."""
    import inspect

    constants: set[str] = set()
    fields: set[str] = set()
    for base in cls.__mro__:
        annotations = inspect.get_annotations(base)
        constants |= {name for name, annotation in annotations.items() if "ClassVar" in str(annotation)}
        fields |= vars(base).get("__dataclass_fields__", {}).keys()
    fields |= inspect.get_annotations(cls).keys()
    for base in cls.__mro__:
        annotations = inspect.get_annotations(base)
        own = base is cls or issubclass(base, Projection)
        where = f"projection {cls.__name__}" if own else f"{base.__name__}, a base of projection {cls.__name__},"
        for name in (*annotations, *vars(base)):
            if name in constants or name in _OF_TYPING or (name.startswith("__") and name.endswith("__")):
                continue
            if name in annotations and name not in fields:
                raise ConfigError(
                    f"field {name!r} of {where} would not be part of the state: declare it in the projection, or make "
                    f"{base.__name__} a dataclass"
                )
            if name not in annotations and _is_value(vars(base)[name]):
                value = vars(base)[name]
                kind = "str | None" if value is None else type(value).__name__
                raise ConfigError(
                    f"attribute {name!r} of {where} has no type and would not be part of the state: write "
                    f"`{name}: {kind} = …` for a field, `{name}: ClassVar[{kind}] = …` for what is not state"
                )


def _is_value(attribute: object) -> bool:
    """Returns True if a class's attribute is a plain value; not a method, property, slot or class."""
    return not isinstance(attribute, type) and not hasattr(type(attribute), "__get__")


def _prepare_defaults(cls: type[object]) -> None:
    """Lets fields have defaults such as [] and {}, with a copy for each state."""
    import copy
    import dataclasses
    import inspect

    for name, annotation in inspect.get_annotations(cls).items():
        if "ClassVar" in str(annotation):
            continue
        if name not in vars(cls):
            raise ConfigError(
                f"field {name!r} of projection {cls.__name__} needs a default: the state before any event"
            )
        default = vars(cls)[name]
        if isinstance(default, dataclasses.Field):
            if default.default is dataclasses.MISSING and default.default_factory is dataclasses.MISSING:
                raise ConfigError(f"field {name!r} of projection {cls.__name__} needs a default or a default_factory")
        elif type(default).__hash__ is None:
            setattr(cls, name, dataclasses.field(default_factory=partial(copy.deepcopy, default)))


def _type_name(annotation: object) -> str:
    if isinstance(annotation, str):
        return annotation
    return annotation.__name__ if type(annotation) is type else repr(annotation)


def _resolve_fields(cls: type[object], names: dict[str, object]) -> None:
    """Resolves annotations that are text while their names can be looked up."""
    own = vars(cls).get("__annotations__", {})
    for field, annotation in own.items():
        found = resolve(annotation, names)
        if found is not None:
            own[field] = found


def _resolved(handler: Callable[..., object], names: dict[str, object]) -> dict[tuple[str, str], object]:
    import inspect

    found = {}
    for parameter in list(inspect.signature(handler).parameters.values())[1:]:
        if isinstance(parameter.annotation, str):
            meant = resolve(parameter.annotation, {**handler.__globals__, **names})
            if meant is not None:
                found[handler.__qualname__, parameter.name] = meant
    return found


def resolve(annotation: object, names: dict[str, object]) -> object:
    """Returns the type that an annotation stands for, or None when it cannot be resolved."""
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, names)
    except Exception:
        return None


# ── The fold: events into a projection's state, a block's column of payloads at a time where handlers allow it ──


P = TypeVar("P", bound=Projection)

EVENT, PAYLOAD = "event", "payload"
_decode_one = msgspec.json.Decoder().decode


class _Step:
    """A handler of one kind, and the values that it takes."""

    __slots__ = ("decode", "handler", "only", "schema", "wants")

    def __init__(self, handler: Callable[..., object], wants: tuple[object, ...], schema: Schema | None) -> None:
        self.handler = handler
        self.wants = wants
        self.only = wants[0] if len(wants) == 1 else None
        """The only value that the handler takes, or None when it takes several."""
        self.schema = schema
        self.decode: Callable[[bytes], object] = _decode_one
        """The function that turns a stored payload into the only argument of the handler (see `_want_payloads`)."""
        if self.only is not PAYLOAD and schema is not None and schema.decode is not None:
            self.decode = schema.decode

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
                wants = _parameter_kinds(handler, schema, self.declared)
                self._steps.setdefault(name, []).append(_Step(handler, wants, schema))

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds with a handler."""
        return frozenset(self._steps)

    def fold_events(self, state: P, events: Iterable[Event]) -> P:
        """Changes a state by events, one by one; an erased event says nothing to a handler."""
        steps = self._steps
        for event in events:
            for step in () if event.erased else steps.get(event.kind, ()):
                try:
                    step(state, event)
                except Exception as error:
                    self._explain(error, step, event)
                    raise
        return state

    def fold_pieces(self, state: P, pieces: Iterable[Piece]) -> tuple[int, int, int]:
        """Changes a state by rows of blocks; returns the first and the last position, and the number of events."""
        first = last = count = 0
        for block, rows in pieces:
            if not len(rows):
                continue
            told = not_erased(block, rows)
            self.fold_rows(block, told, [state] * len(told))
            first, last = first or block.seq(rows[0]), block.seq(rows[-1])
            count += len(rows)
        return first, last, count

    def fold_each(self, block: Any, states: Sequence[P]) -> None:
        """Changes many states by the events of a block: the n-th state by the n-th event."""
        self.fold_rows(block, range(len(states)), states)

    def fold_rows(self, block: Any, rows: Sequence[int], states: Sequence[P]) -> None:
        """Changes each state by its row; when every handler takes one payload, no event objects are made."""
        handled = [self._steps.get(kind, []) for kind in block.wire.kinds]
        if not any(handled):
            return
        codes = block.kind_codes
        if not all(handled):
            own = [bool(handled[codes[row]]) for row in rows]
            rows, states = list(compress(rows, own)), list(compress(states, own))
        if not _want_payloads(handled, block):
            for row, state in zip(rows, states, strict=True):
                self.fold_events(state, (Event(block, row),))
            return
        left = iter(_payloads(block, rows))
        if len(handled) == 1:
            step = handled[0][0]
            calls = zip(repeat(step.handler), states, map(step.decode, left), strict=False)
        else:
            chosen = [handled[codes[row]][0] for row in rows]
            values = map(call, [step.decode for step in chosen], left)
            calls = zip([step.handler for step in chosen], states, values, strict=True)
        try:
            # One by one: a payload that is decoded, handled and dropped stays in the processor's cache, a hundred
            # payloads do not.
            for handler, state, value in calls:
                handler(state, value)
        except Exception as error:
            at = len(rows) - 1 - length_hint(left)
            self._explain_payload(error, handled[codes[rows[at]]][0], Event(block, rows[at]))
            raise

    def _explain_payload(self, error: Exception, step: _Step, event: Event) -> None:
        """Raises the right error for a failure: of the stored payload, when it does not decode, else of the handler."""
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


def not_erased(block: Block, rows: Sequence[int]) -> Sequence[int]:
    """Returns those of some rows of a block whose events are not erased."""
    if not block.may_have_header(ERASED_AT):
        return rows
    return [row for row in rows if ERASED_AT not in block.headers(row)]


_folders: WeakKeyDictionary[type[Any], tuple[list[Schema | None], Fold[Any]]] = WeakKeyDictionary()


def folder_of(projection: type[P]) -> Fold[P]:
    """Returns the fold of a projection, which applies events to its state.

    It is made once, and again after new types were declared for its kinds.
    """
    check_projection(projection)
    schemas = [schema_of(_kind_name(kind)) for _, kinds in projection.__projection__.handlers for kind in kinds]
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


def _parameter_kinds(handler: Callable[..., object], schema: Schema | None, declared: Declared) -> tuple[object, ...]:
    """Returns the kind of each parameter of a handler after self: the event, the plain payload, or a typed one."""
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
        wants.append(_parameter_kind(handler, parameter, schema, declared))
    return tuple(wants)


def _parameter_kind(handler: Callable[..., Any], parameter: Any, schema: Schema | None, declared: Declared) -> Any:
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


def _want_payloads(handled: list[list[_Step]], block: Block) -> bool:
    """Returns True if each kind has one handler, which takes one stored payload."""
    for steps in handled:
        for step in steps:
            schema, want = step.schema, step.only
            if len(steps) > 1 or want is None or block.wire.binary is not None:
                return False
            if want is not PAYLOAD and (schema is None or want is not schema.type):
                return False
            if schema is not None and schema.newest > 1:
                return False
    return True


def _payloads(block: Block, rows: Sequence[int]) -> list[bytes]:
    """Returns the stored payloads of some rows."""
    if not len(rows):
        return []
    # slices of bytes cost half as much as slices of a view
    bounds, payload = block.payload_offsets, bytes(block.payload)
    if isinstance(rows, range) and rows.step == 1:
        return [payload[start:stop] for start, stop in pairwise(bounds[rows.start : rows.stop + 1])]
    return [payload[bounds[row] : bounds[row + 1]] for row in rows]
