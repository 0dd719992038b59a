"""The options of a task's calls: their retries, their time limits, and how long results are kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypedDict

import msgspec

from penstock.core.clock import Duration, seconds
from penstock.core.model.failure import NackRequest, check_nack
from penstock.core.queue.policy import Retry, check_attempts
from penstock.errors import ConfigError, TaskTimeout, TryAgain

if TYPE_CHECKING:
    from typing import Any

Errors = type[BaseException] | Sequence[type[BaseException]]


class TaskOptions(TypedDict, total=False):
    """The options that a task may be declared with, beside its queue and its name; see `Tasks.task`."""

    retry: Retry | None
    max_attempts: int | None
    retry_on: Errors
    give_up_on: Errors
    timeout: Duration | None
    keep_results: Duration | None
    key: str | Callable[..., str] | None
    unique: bool | Callable[..., str]
    priority: int


class TaskPlan(msgspec.Struct, frozen=True):
    """The checked options of a task that are not those of a push."""

    retry: Retry | None = None
    retry_on: tuple[type[BaseException], ...] | None = None
    give_up_on: tuple[type[BaseException], ...] = ()
    timeout: float | None = None
    keep: float | None = None
    """The seconds for which results are kept; None for no results."""
    key: str | Callable[..., str] | None = None
    unique: bool | Callable[..., str] = False

    @classmethod
    def of(cls, options: TaskOptions, keep: float | None) -> TaskPlan:
        """Returns the plan of options; `keep` is the default time for which results are kept."""
        retry = options.get("retry")
        if retry is not None and not isinstance(retry, Retry):
            raise ConfigError(f"retry must be a Retry, not {retry!r:.80}")
        timeout = options.get("timeout")
        if "keep_results" in options:
            kept = options["keep_results"]
            keep = None if kept is None else seconds(kept, "keep_results", minimum=0.001)
        key = options.get("key")
        if key is not None and not isinstance(key, str) and not callable(key):
            raise ConfigError(f"key must be text, or a function of the task's arguments, not {key!r:.80}")
        unique = options.get("unique", False)
        if not isinstance(unique, bool) and not callable(unique):
            raise ConfigError(f"unique is True, or a function of the task's arguments, not {unique!r:.80}")
        return cls(
            retry,
            _errors(options["retry_on"], "retry_on") if "retry_on" in options else None,
            _errors(options.get("give_up_on", ()), "give_up_on"),
            None if timeout is None else seconds(timeout, "timeout", minimum=0.001),
            keep,
            key,
            unique,
        )

    def verdict(self, error: Exception, attempt: int) -> NackRequest | None:
        """Returns how a failed call is settled; None leaves it to the queue's policy.

        An error may decide by itself (`GiveUp`, `TryAgain`). A call that exceeded its time limit is tried again,
        whatever `retry_on` names, unless `give_up_on` names `TaskTimeout`.
        """
        is_final = isinstance(error, self.give_up_on)
        if self.retry_on is not None and not isinstance(error, (*self.retry_on, TaskTimeout, TryAgain)):
            is_final = True
        delay = None if self.retry is None else self.retry.delay(attempt)
        return check_nack(error, delay=delay, dead=is_final) if is_final or self.retry is not None else None


def push_options(options: TaskOptions) -> dict[str, Any]:
    """Returns the options of a task that are options of each push."""
    if (most := options.get("max_attempts")) is not None:
        check_attempts(most)
    return {name: options[name] for name in ("max_attempts", "priority") if options.get(name) is not None}


def _errors(given: Errors, name: str) -> tuple[type[BaseException], ...]:
    found = (given,) if isinstance(given, type) else tuple(given)
    for one in found:
        if not isinstance(one, type) or not issubclass(one, BaseException):
            raise ConfigError(f"{name} names exceptions, like (ConnectionError, TimeoutError), not {one!r:.80}")
    return found
