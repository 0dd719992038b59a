"""Typed events: declared payload types, their versions, and the functions that bring old payloads up to date.

A kind has at most one type. An appended event carries its version in a header; version 1 needs no header, so plain
payloads count as version 1. A read event passes through every `@upcast` between its version and the newest version, in
order. `Event.as_`, projections, rebuilds and Spark use the same functions.

    @event("order.placed", version=2)
    class OrderPlaced(msgspec.Struct):
        total: int
        currency: str

    @upcast("order.placed", version=1)
    def add_currency(payload):
        return {**payload, "currency": "EUR"}

A handle may have a type for its payloads, declared or not: `journal.topic("orders", payload=Order)`. The handle checks
written payloads, and decodes read payloads (`PayloadSchema`).
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from functools import cache
from types import UnionType
from typing import TYPE_CHECKING, Any, Generic, Union, cast, get_args, get_origin, is_typeddict

import msgspec

from penstock.core.names import check_kind, check_whole
from penstock.errors import ConfigError, PoisonMessage

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from penstock.core.events import Event

    PayloadT = TypeVar("PayloadT", default=Any)
else:
    from typing import TypeVar

    PayloadT = TypeVar("PayloadT")  # type checkers assume Any where no type is named

T = TypeVar("T")
Upcaster = Callable[[Any], Any]
U = TypeVar("U", bound=Upcaster)

MESSAGE_KIND = "message"
"""The kind of messages that were pushed without one."""
VERSION_HEADER = "schema-version"
"""The header with the version of its type that an event was written with; absent for version 1."""


class Schema:
    """The declaration of a kind: its type and version, once they are known, and its upcasters."""

    __slots__ = ("decode", "kind", "type", "upcasters", "version")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.version = 1
        self.type: type[Any] | None = None
        self.upcasters: dict[int, Upcaster] = {}
        self.decode: Callable[[bytes | memoryview], Any] | None = None

    @property
    def newest(self) -> int:
        """The version that reading brings every payload up to."""
        if self.type is not None:
            return self.version
        return max(self.upcasters, default=0) + 1

    def upcast(self, payload: object, version: int, where: str) -> object:
        """Returns a plain payload of a version brought up to the newest one."""
        newest = self.newest
        if version > newest:
            raise ConfigError(
                f"{where} was written with version {version} of {self.kind!r}; this program knows versions up to "
                f"{newest}: upgrade it"
            )
        for step in range(version, newest):
            upcaster = self.upcasters.get(step)
            if upcaster is None:
                raise ConfigError(
                    f"{where} has version {version} of {self.kind!r}, and no upcast leads from {step} to {step + 1}: "
                    f'declare @upcast("{self.kind}", version={step})'
                )
            try:
                payload = upcaster(payload)
            except Exception as error:
                error.add_note(f"in upcaster {_name(upcaster)} ({self.kind!r}, {step} → {step + 1}), for {where}")
                raise
        return payload


_lock = threading.RLock()
_by_kind: dict[str, Schema] = {}
_by_type: dict[type[Any], Schema] = {}
DECLARED = _by_type
"""The types that are declared as events. Most payloads have another type, and this lookup costs no call."""


def event(kind: str, *, version: int = 1) -> Callable[[type[T]], type[T]]:
    """Declares a class (msgspec Struct, dataclass, pydantic model) as the payload of a kind, in its newest version."""
    check_kind(kind)
    check_whole(version, "version")

    def declare(cls: type[T]) -> type[T]:
        decode = _decoder(cls)
        with _lock:
            schema = _by_kind.get(kind) or Schema(kind)
            _check_only_type(schema, cls)
            beyond = [step for step in schema.upcasters if step >= version]
            if beyond:
                raise ConfigError(
                    f"{kind!r} is declared with version {version}, but there is an upcast from version {max(beyond)} "
                    f"to {max(beyond) + 1}: give the type version={max(beyond) + 1}, or remove the upcast"
                )
            if schema.type is not None:
                _by_type.pop(schema.type, None)
                schema = _without_type(schema)  # another object: values made for the old class are made anew
            schema.type, schema.version, schema.decode = cls, version, decode
            _by_kind[kind] = _by_type[cls] = schema
        return cls

    return declare


def upcast(kind: str, *, version: int) -> Callable[[U], U]:
    """Declares a function that turns a plain payload of `version` into one of `version + 1`."""
    check_kind(kind)
    check_whole(version, "version")

    def declare(function: U) -> U:
        if not callable(function):
            raise ConfigError(f"an upcast of {kind!r} must be a function, not {function!r}")
        with _lock:
            schema = _by_kind.get(kind) or Schema(kind)
            known = schema.upcasters.get(version)
            if known is not None and not _is_redefinition(known, function):
                raise ConfigError(
                    f"{kind!r} has an upcast from version {version} already ({_name(known)}): one function per step"
                )
            if schema.type is not None and version >= schema.version:
                raise ConfigError(
                    f"an upcast from version {version} of {kind!r} leads to {version + 1}, but its newest version is "
                    f"{schema.version} ({schema.type.__qualname__}): give the type version={version + 1}"
                )
            steps = schema.upcasters.keys() | {version}
            missing = set(range(min(steps), max(steps) + 1)) - steps
            if missing:
                raise ConfigError(
                    f"the upcasts of {kind!r} have a gap: {sorted(steps)[0]} … {max(steps)} without {min(missing)}; "
                    "declare them in order"
                )
            schema.upcasters[version] = function
            _by_kind[kind] = schema
        return function

    return declare


def schema_of(kind: str) -> Schema | None:
    """Returns the declaration of a kind, or None."""
    return _by_kind.get(kind)


def schema_of_type(cls: type[object]) -> Schema | None:
    """Returns the declaration of a type, or None."""
    try:
        return _by_type.get(cls)
    except TypeError:  # the value has no hash, for example a list
        raise ConfigError(f"a type is needed here, not {cls!r:.80}") from None


def forget(kind: str) -> None:
    """Removes everything declared of a kind: for tests and interactive sessions."""
    with _lock:
        schema = _by_kind.pop(kind, None)
        if schema is not None and schema.type is not None:
            _by_type.pop(schema.type, None)


def brings_kind(payload: object, kind: str) -> bool:
    """Returns True when a payload is of a declared type, which decides its kind. Raises ConfigError when `kind` names
    another kind."""
    schema = _by_type.get(type(payload))
    if schema is None:
        return False
    if kind not in (MESSAGE_KIND, schema.kind):
        raise ConfigError(
            f"{type(payload).__name__} is declared as {schema.kind!r} and cannot be pushed as {kind!r}: leave kind= out"
        )
    return True


def encode_event(instance: object) -> tuple[str, object, dict[str, str]]:
    """Returns the kind, the payload and the headers of an instance of a declared type."""
    schema = _by_type.get(type(instance))
    if schema is None:
        raise ConfigError(_no_kind(instance))
    dump = getattr(instance, "model_dump", None)
    payload = instance if dump is None else dump(mode="json")
    return schema.kind, payload, {} if schema.version == 1 else {VERSION_HEADER: str(schema.version)}


def _no_kind(given: object) -> str:
    """Returns why a value is not a kind: None, a payload that came first, or a class that is not declared."""
    name = type(given).__qualname__
    if given is None or isinstance(given, int | float):
        return f"an event's kind is text, like 'order.placed', not {given!r:.40}"
    if isinstance(given, Mapping | list | tuple | bytes):
        return f"an event's kind is missing: append('order.placed', payload); a {name} is a payload"
    return (
        f"an event's kind must be text or an instance of a declared event type, not {name}: "
        f'declare the class with @penstock.event("…"), or give the kind first: append("…", payload)'
    )


class PayloadSchema(Generic[PayloadT]):
    """The type of a handle's payloads, or a union of declared types: written payloads are checked, read payloads are
    decoded.
    """

    __slots__ = ("_decode", "_kinds", "type")

    def __init__(self, type: type[PayloadT] | UnionType) -> None:
        self.type: Any = type
        members = get_args(type) if get_origin(type) in (Union, UnionType) else (type,)
        schemas = [schema for one in members if (schema := schema_of_type(one)) is not None]
        self._kinds = {schema.kind: schema for schema in schemas}
        self._decode = None if len(schemas) == len(members) else _decoder(self.type)
        if isinstance(self._decode, _LazyDecoder):
            self._decode.made()

    def draft(self, kind: object, payload: object) -> tuple[Any, Any]:
        """Returns the kind and the payload of an event that is to be appended; ConfigError names the field that is
        wrong.
        """
        fits = self.accept(payload, kind) if isinstance(kind, str) else self.accept(kind, None)
        return (fits, None) if type(fits) in _by_type else (kind, fits)

    def accept(self, payload: object, kind: str | None = None) -> Any:
        """Returns a payload as it is to be written: of a declared type, an instance, which brings its kind and
        version.
        """
        schema = _by_type.get(type(payload)) or (self._kinds.get(kind) if isinstance(kind, str) else None)
        if schema is not None and kind not in (None, MESSAGE_KIND, schema.kind):
            raise ConfigError(f"{type(payload).__name__} is declared as {schema.kind!r}, and cannot be a {kind!r}")
        if schema is None and kind == MESSAGE_KIND and len(self._kinds) == 1 and self._decode is None:
            (schema,) = self._kinds.values()
        decode = self._decode if schema is None or schema.kind not in self._kinds else schema.decode
        if decode is None:
            raise ConfigError(f"a payload here is {self._named()}, not {_shown(payload, kind)}")
        if self.type is bytes and isinstance(payload, bytes | bytearray | memoryview):
            return payload
        dump = getattr(payload, "model_dump", None)
        plain = payload if dump is None else dump(mode="json")
        try:
            value = decode(msgspec.json.encode(plain))
        except (msgspec.MsgspecError, TypeError, ValueError, RecursionError, OverflowError) as error:
            raise ConfigError(f"{_shown(payload, kind)} does not fit {self._named()}: {error}") from error
        return plain if schema is None else value

    def decode(self, event: Event) -> PayloadT:
        """Returns the payload of an event that was read; PoisonMessage names the position and the field that does
        not fit.
        """
        schema = self._kinds.get(event.kind)
        if schema is None and self._decode is None:
            version = stored_version(event.headers, event.topic, event.seq)
            raise _unreadable(event, self._named(), version, "no such kind is declared by it")
        own: Any = self.type if schema is None else schema.type
        value: PayloadT = decode_event(event, own)
        return value

    def _named(self) -> str:
        return _type_name(self.type)


def _shown(payload: object, kind: str | None) -> str:
    return f"a payload ({type(payload).__qualname__}{'' if kind in (None, MESSAGE_KIND) else f' of {kind!r}'})"


def decode_event(event: Event, type: type[T]) -> T:
    """Returns an event's payload as a value of a type, upcast to the newest version of its kind."""
    declared = schema_of_type(type)
    if declared is not None and declared.kind != event.kind:
        raise ConfigError(
            f"event {event.seq} of topic {event.topic!r} is a {event.kind!r}; {type.__qualname__} is declared for "
            f"{declared.kind!r}"
        )
    schema = declared or _by_kind.get(event.kind)
    version = stored_version(event.headers, event.topic, event.seq)
    if event.binary:
        if type is bytes:
            return cast(T, event.raw)
        raise _unreadable(event, _type_name(type), version, "it is bytes, not JSON")
    try:
        if schema is None or version == schema.newest:
            decode = declared.decode if declared is not None else _decoder(type)
            assert decode is not None
            return cast(T, decode(event.raw))
        payload = schema.upcast(msgspec.json.decode(event.raw), version, f"event {event.seq} of topic {event.topic!r}")
        return cast(T, _convert(payload, type))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _unreadable(event, _type_name(type), version, error) from error
    except ValueError as error:
        if not _is_pydantic(type) or isinstance(error, ConfigError) or _raised_by_upcaster(error):
            raise
        raise _unreadable(event, _type_name(type), version, error) from error


def stored_version(headers: Mapping[str, str], topic: str, seq: int) -> int:
    """Returns the version an event was written with."""
    text = headers.get(VERSION_HEADER)
    if text is None:
        return 1
    if text.isascii() and text.isdigit() and int(text) > 0:
        return int(text)
    raise ConfigError(f"event {seq} of topic {topic!r} has the header {VERSION_HEADER}: {text!r}, which is no version")


def _check_only_type(schema: Schema, cls: type[object]) -> None:
    if schema.type is not None and not _is_redefinition(schema.type, cls):
        raise ConfigError(
            f"{schema.kind!r} is declared for {_name(schema.type)} already; {_name(cls)} needs a kind of its own"
        )
    other = _by_type.get(cls)
    if other is not None and other is not schema:
        raise ConfigError(f"{_name(cls)} is declared for {other.kind!r} already; a type belongs to one kind")


def _without_type(schema: Schema) -> Schema:
    """Returns the upcasters of a kind whose class is defined again."""
    bare = Schema(schema.kind)
    bare.upcasters = schema.upcasters
    return bare


def _is_redefinition(old: Any, new: Any) -> bool:
    """Returns True when the same definition ran again: a module, a notebook cell, or a function around it."""
    return old is new or (
        (old.__module__, old.__qualname__) == (new.__module__, new.__qualname__)
        and "<lambda>" not in new.__qualname__  # several classes on one line of code would share this name
    )


def _name(thing: Any) -> str:
    return f"{thing.__module__}.{thing.__qualname__}"


def _is_pydantic(cls: type[object]) -> bool:
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(cls, type) and issubclass(cls, pydantic.BaseModel)


def _raised_by_upcaster(error: BaseException) -> bool:
    return any(note.startswith("in upcaster") for note in getattr(error, "__notes__", ()))


def _decoder(cls: Any) -> Callable[[Any], Any]:
    """Returns the decoder that makes values of a type from payloads. Each type has a single decoder."""
    return _new_decoder(cls)


@cache
def _new_decoder(cls: Any) -> Callable[[Any], Any]:
    if _is_pydantic(cls):
        validate = cls.model_validate_json
        return lambda raw: validate(bytes(raw))
    fields = is_typeddict(cls) or hasattr(cls, "__dataclass_fields__")
    if isinstance(cls, type) and cls.__module__ != "builtins" and not fields and not issubclass(cls, msgspec.Struct):
        usable = "a msgspec.Struct, a dataclass, a TypedDict or a pydantic model"
        raise ConfigError(f"{_name(cls)} cannot be an event's type: use {usable}")
    return _LazyDecoder(cls)


class _LazyDecoder:
    """A JSON decoder made at its first use: a class may name types that are defined after it."""

    __slots__ = ("_cls", "_decode")

    def __init__(self, cls: object) -> None:
        self._cls = cls
        self._decode: Callable[[Any], Any] | None = None

    def __call__(self, raw: bytes | memoryview) -> object:
        return (self._decode or self.made())(raw)

    def made(self) -> Callable[[Any], Any]:
        """Returns the decoder; raises ConfigError when no decoder is possible for the type."""
        try:
            self._decode = msgspec.json.Decoder(self._cls).decode
        except (TypeError, NameError, AttributeError) as error:
            raise ConfigError(f"payloads cannot be read as {self._cls}: {error}") from error
        return self._decode


def _convert(payload: object, cls: type[Any]) -> Any:
    if _is_pydantic(cls):
        return cls.model_validate(payload)
    return msgspec.convert(payload, cls)


def _type_name(cls: object) -> str:
    return str(getattr(cls, "__qualname__", cls))


def _unreadable(event: Event, name: str, version: int, reason: object) -> PoisonMessage:
    return PoisonMessage(
        f"the payload of event {event.seq} of topic {event.topic!r} ({event.kind!r}, version {version}) does not fit "
        f"{name}: {reason}",
        raw=event.raw,
    )
