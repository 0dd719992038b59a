"""Calls that follow each other: chains, and calls whose results are joined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, ParamSpec
from uuid import uuid4

import msgspec

from penstock.core.events import Receipt
from penstock.core.model.calls import THEN, UNIQUE, FirstCall, GatherRequest, NextCall
from penstock.core.queue.tasks.arguments import digest
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.core.queue.tasks.task import Task
    from penstock.core.queue.tasks.tasks import Tasks

P = ParamSpec("P")
UNFIT = ("delay", "not_before", "dedup", "cause", "headers")
"""The options of a push that a following call, or a call of a join, cannot have."""


class TaskCall:
    """A call that is not pushed yet: `task.call(…)` makes one."""

    def __init__(
        self,
        tasks: Tasks,
        task: Task[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        following: tuple[TaskCall | Task[..., Any], ...] = (),
    ) -> None:
        self._tasks = tasks
        self._task = task
        self._args = args
        self._kwargs = kwargs
        self._following = following

    def __repr__(self) -> str:
        return f"<call of {self._task.name!r}>"

    def then(self, *following: TaskCall | Task[..., Any]) -> TaskCall:
        """Returns the same call, followed by others: each following task is called with the earlier result, then its
        own arguments.
        """
        return TaskCall(self._tasks, self._task, self._args, self._kwargs, (*self._following, *following))

    def push(self) -> Receipt:
        """Pushes the call.

        `tasks.result(receipt.id)` returns the state of the chain's last call, or of the call that failed.
        """
        payload, options = self._pushed()
        receipt: Receipt = self._tasks.journal.queue(self._task.queue).push(payload, **options)
        return receipt

    async def push_async(self) -> Receipt:
        """Does what `push` does, for an event loop."""
        payload, options = self._pushed()
        return await self._tasks.journal.queue(self._task.queue).submit(payload, **options)

    def _pushed(self) -> tuple[object, dict[str, Any]]:
        payload, options = self._task.prepared(self._args, self._kwargs)
        payload.then = self._next_calls()
        if payload.then:
            headers = options["headers"] = {**(options.get("headers") or {}), THEN: payload.then[0].task}
            if UNIQUE in headers:  # a call that waits and is followed by nothing else is not the same
                headers[UNIQUE] += f"/{digest(payload.then)}"
        return payload, options

    def _next_calls(self) -> list[NextCall]:
        return [next_call for one in self._following for next_call in following(one)]

    def first(self) -> FirstCall:
        """Returns the call as one of several."""
        payload, options = self._task.prepared(self._args, self._kwargs)
        return FirstCall(
            **_described(self._task, payload.args, payload.kwargs, options),
            then=self._next_calls(),
            keep=self._task.plan.keep,
        )

    def follows(self) -> list[NextCall]:
        """Returns the call and the calls after it, as calls that follow another call."""
        payload = self._task.signature.payload(self._args, self._kwargs, follows=True)
        options = self._task.own_options()
        if callable(self._task.plan.key) and "key" not in options:
            raise ConfigError(
                f"the key of task {self._task.name!r} is a function of its arguments, the first of which is not known "
                "before the call before it has returned: name the key, .using(key=…)"
            )
        return [NextCall(**_described(self._task, payload.args, payload.kwargs, options)), *self._next_calls()]


class ChainStart(Generic[P]):
    """A chain whose first call gets its arguments from `push`."""

    def __init__(self, first: Task[P, Any], following: Sequence[TaskCall | Task[..., Any]]) -> None:
        self._first = first
        self._following = tuple(following)

    def then(self, *following: TaskCall | Task[..., Any]) -> ChainStart[P]:
        """Returns the same chain, followed by others."""
        return ChainStart(self._first, (*self._following, *following))

    def call(self, *args: P.args, **kwargs: P.kwargs) -> TaskCall:
        """Returns the chain with the arguments of its first call, not pushed yet."""
        return self._first.call(*args, **kwargs).then(*self._following)

    def push(self, *args: P.args, **kwargs: P.kwargs) -> Receipt:
        """Pushes the chain; see `TaskCall.push`."""
        return self.call(*args, **kwargs).push()

    async def push_async(self, *args: P.args, **kwargs: P.kwargs) -> Receipt:
        """Does what `push` does, for an event loop."""
        return await self.call(*args, **kwargs).push_async()


class Gather:
    """Calls that are pushed together; the call of `then` gets the list of their results, in order."""

    def __init__(
        self, tasks: Tasks, calls: Sequence[TaskCall], following: tuple[TaskCall | Task[..., Any], ...] = ()
    ) -> None:
        if not calls:
            raise ConfigError("there is no call to gather")
        self._tasks = tasks
        self._calls = list(calls)
        self._following = following

    def __repr__(self) -> str:
        return f"<{len(self._calls)} calls together>"

    def then(self, *following: TaskCall | Task[..., Any]) -> Gather:
        """Returns the same calls, followed by others: the first following task is called with the list of results,
        then its own arguments.
        """
        return Gather(self._tasks, self._calls, (*self._following, *following))

    def push(self) -> GatherReceipt:
        """Pushes all calls in one commit. `tasks.result(receipt.id)` returns the state of the last following call."""
        then = [one for call in self._following for one in following(call)]
        keep = None
        if self._following:
            last = self._following[-1]
            keep = (last._task if isinstance(last, TaskCall) else last).plan.keep
        request = GatherRequest(uuid4().hex, [call.first() for call in self._calls], then, keep)
        return GatherReceipt(request.id, self._tasks.journal.push_together(request))

    async def push_async(self) -> GatherReceipt:
        """Does what `push` does, for an event loop."""
        import asyncio

        return await asyncio.to_thread(self.push)


class GatherReceipt(msgspec.Struct, frozen=True):
    """The receipt of calls that were pushed together."""

    id: str
    """The id by which `tasks.result` finds the following call."""
    receipts: list[Receipt]
    """The receipts of the calls, in their order."""


def following(one: TaskCall | Task[..., Any]) -> list[NextCall]:
    """Returns the calls that follow a call; a task without arguments is called with the earlier result alone."""
    from penstock.core.queue.tasks.task import Task

    if isinstance(one, Task):
        return one.call().follows()
    if not isinstance(one, TaskCall):
        raise ConfigError(f"a call is followed by tasks, or by what task.call(…) gives, not by {one!r:.80}")
    return one.follows()


def _described(
    task: Task[..., Any], args: list[Any], kwargs: dict[str, Any], options: Mapping[str, Any]
) -> dict[str, Any]:
    if own := [name for name in UNFIT if name in task.chosen]:
        raise ConfigError(f"a call that follows another, or is gathered, has no {own[0]}=: leave it out of using()")
    chosen = {name: options[name] for name in ("key", "priority", "max_attempts") if name in options}
    return {"queue": task.queue, "task": task.name, "args": args, "kwargs": kwargs, **chosen}
