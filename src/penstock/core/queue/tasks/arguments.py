"""The arguments of a task's calls: checked when a call is pushed, converted to the annotated types when it is made."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

import msgspec

from penstock.core.journal.prepare import encode_payload, refuse_changed
from penstock.core.model.calls import TaskArguments
from penstock.core.names import check_items, check_mapping
from penstock.core.queue.state.records import blake2b
from penstock.errors import ConfigError


class Signature:
    """The parameters of a task's function."""

    def __init__(self, name: str, function: Callable[..., object]) -> None:
        self._name = name
        self._function = function
        self._signature = inspect.signature(function)

    @cached_property
    def _hints(self) -> Mapping[str, Any]:
        """The types of the parameters by name, where they are known."""
        try:
            return typing.get_type_hints(self._function)
        except Exception:  # a name that exists for type checkers alone
            return {}

    @property
    def _rest(self) -> inspect.Signature:
        """The signature without the first argument."""
        parameters = list(self._signature.parameters.values())
        if not parameters or parameters[0].kind in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD):
            raise TypeError(f"{self._name}() takes no argument, and is to be called with what the call before returns")
        kept = parameters[0].kind is inspect.Parameter.VAR_POSITIONAL
        return self._signature.replace(parameters=parameters if kept else parameters[1:])

    def payload(
        self, args: tuple[object, ...], kwargs: Mapping[str, object], *, follows: bool = False
    ) -> TaskArguments:
        """Returns the payload of a call.

        Raises TypeError, like a call, when the arguments do not fit the function by number, by name, or by their
        annotated types after a round trip through JSON. With `follows`, the first argument is the result of the earlier
        call.
        """
        positional, named = check_items(args, "args"), check_mapping(kwargs, "kwargs")
        given = (self._rest if follows else self._signature).bind(*positional, **named)
        payload = TaskArguments(positional, named)
        for name, hint, value in self._values(given):
            self._check(name, hint, value)
        return payload

    def bound(self, payload: object) -> inspect.BoundArguments:
        """Returns the arguments of a message in the annotated types; raises ConfigError when they do not fit."""
        try:
            given = msgspec.convert(payload, TaskArguments)
            bound = self._signature.bind(*given.args, **given.kwargs)
        except (msgspec.ValidationError, TypeError, UnicodeEncodeError) as error:
            raise self._unfit(str(error)) from None
        values = bound.arguments
        for name, parameter in self._signature.parameters.items():
            if name not in values or name not in self._hints:
                continue
            try:
                if parameter.kind is parameter.VAR_POSITIONAL:
                    values[name] = tuple([self._converted(one, self._hints[name]) for one in values[name]])
                elif parameter.kind is parameter.VAR_KEYWORD:
                    values[name] = {key: self._converted(one, self._hints[name]) for key, one in values[name].items()}
                else:
                    values[name] = self._converted(values[name], self._hints[name])
            except msgspec.ValidationError as error:
                raise self._unfit(f"{name}: {error}") from None
        return bound

    def _values(self, given: inspect.BoundArguments) -> Iterator[tuple[str, Any, object]]:
        """Yields each value with the name of its parameter and its type."""
        for name, value in given.arguments.items():
            hint, kind = self._hints.get(name, Any), self._signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_POSITIONAL:
                yield from ((name, hint, one) for one in value)
            elif kind is inspect.Parameter.VAR_KEYWORD:
                yield from ((key, hint, one) for key, one in value.items())
            else:
                yield name, hint, value

    def _check(self, name: str, hint: Any, value: object) -> None:
        """Refuses a value that JSON would not return in the parameter's type."""
        try:
            stored = msgspec.json.decode(encode_payload([value], typed=True))  # in a list: bytes are text there
            found = self._converted(stored[0], hint)
        except msgspec.ValidationError as error:
            wanted = hint.__name__ if isinstance(hint, type) else str(hint)
            why = str(error).replace("`", "")
            raise TypeError(f"{self._name}() wants {name}: {wanted}, not {value!r:.60} ({why})") from None
        try:
            same = bool(found == value)
        except Exception:  # the comparison of two arrays, for example, has no truth value
            same = True
        if not same:
            refuse_changed(value)

    def _converted(self, value: object, hint: Any) -> object:
        try:
            return msgspec.convert(value, hint, str_keys=True)
        except msgspec.ValidationError:
            raise
        except TypeError:  # a type without its own JSON form: its JSON value is passed
            return value

    def _unfit(self, why: str) -> ConfigError:
        return ConfigError(f"task {self._name!r} cannot be called with this message: {why}")


def digest(payload: object) -> str:
    """Returns a short text that differs where payloads differ."""
    return blake2b(encode_payload(payload), digest_size=16).hexdigest()
