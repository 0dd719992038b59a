"""Projections: state folded from events, declared as a class.

    class Account(Projection):
        balance: int = 0
        owner: str | None = None

        @on("account.opened")
        def opened(self, event: Opened) -> None:      # a declared event type: the typed payload
            self.owner = event.owner

        @on("deposited", "corrected")
        def add(self, payload) -> None:               # a parameter called payload: the plain payload
            self.balance += payload["amount"]

        @on("closed")
        def closed(self, event) -> None:              # anything else: the event itself
            self.closed_at = event.occurred_at

Every field has a default: the state before the first event. A handler may ask for several things, in any order.
Handlers must do nothing but change `self`: they are run again whenever a state is rebuilt, also on Spark.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterable
from functools import partial
from types import FunctionType
from typing import ClassVar, Self, TypeVar, dataclass_transform

from penstock.errors import ConfigError
from penstock.events import Event
from penstock.names import check_kind, is_whole
from penstock.schema import schema_of_type

F = TypeVar("F", bound=Callable[..., object])

_KINDS = "__penstock_kinds__"
_MAX_NAME_BYTES = 80


class Declared:
    """What is known of a projection class: its name, version, handlers."""

    __slots__ = ("fingerprint", "handlers", "name", "types", "version")

    def __init__(
        self, name: str, version: int, handlers: list[tuple[Callable[..., object], tuple[object, ...]]]
    ) -> None:
        self.name = name
        self.version = version
        self.handlers = handlers
        """Functions and the kinds (or declared types) each of them handles."""
        self.types: dict[tuple[str, str], object] = {}
        """What the annotations of handlers' parameters mean, as far as that is known where the class stands."""
        self.fingerprint = 0
        """Another number when fields or kinds have changed: states saved under another one are not used."""


@dataclass_transform(kw_only_default=False)
class Projection:
    """State folded from events: declare fields with defaults, handle kinds with `@on`.

    `class Account(Projection, version=2)`: a new version makes every saved state be folded anew. `name=` is what saved
    states are filed under, the class's name unless given.
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
        # Here and below, not above: most programs that import penstock declare no projection.
        import dataclasses

        caller = sys._getframe(1)
        names = {**caller.f_globals, **caller.f_locals}
        _resolve_fields(cls, names)
        _prepare_defaults(cls)
        dataclasses.dataclass(cls)
        declared = Declared(name, version, _handlers(cls))
        for base in reversed(cls.__mro__[1:]):
            if "__projection__" in vars(base):
                declared.types.update(vars(base)["__projection__"].types)
        for handler, _ in declared.handlers:
            declared.types.update(_resolved(handler, names))
        cls.__projection__ = declared
        shape = [(field.name, _type_name(field.type)) for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
        kinds = sorted(str(kind) for _, kinds in declared.handlers for kind in kinds)
        declared.fingerprint = zlib.crc32(repr((shape, kinds)).encode())

    @classmethod
    def fold(cls, events: Iterable[Event], state: Self | None = None) -> Self:
        """The state after some events, beginning with `state` (which is changed) or with the defaults."""
        from penstock.entity.projection.folding import folder_of

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
    """The handlers of a class and its bases, bases first; an overridden method counts once, as overridden."""
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


def _prepare_defaults(cls: type[object]) -> None:
    """Lets fields have defaults such as [] and {}, each state with its own."""
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
    """Turns annotations that are text into types while the names they use can be looked up."""
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
    """What an annotation means, or None when it cannot be said."""
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, names)
    except Exception:
        return None
