"""Keyword arguments: typed one by one, and what is misspelt is named."""

from __future__ import annotations

import inspect
import pydoc
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import Draft, Journal, Outbox, Queue, QueuePolicy, Settings, Topic, Transaction, aio
from penstock.aio import AsyncOutbox, AsyncQueue, AsyncTopic
from penstock.core.model import arguments

USES = Path(__file__).parent / "typed_uses.py"
CACHE = f"--cache-dir={USES.parents[1] / '.mypy_cache' / 'uses'}"
"""Kept from run to run: without it every run checks all that penstock imports."""


def test_a_type_checker_takes_the_right_uses_and_no_wrong_one(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--follow-imports=silent", CACHE, str(USES)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def parameters(call: Any) -> list[str]:
    return [name for name in inspect.signature(call).parameters if name not in ("self", "payload", "wait")]


@pytest.mark.parametrize(
    ("typed", "names"),
    [
        (arguments.DraftArguments, set(Draft.__struct_fields__) - {"kind", "payload", "topic"}),
        (arguments.SettingsArguments, Settings.__struct_fields__),
        (arguments.PolicyArguments, QueuePolicy.__struct_fields__),
        (arguments.PushArguments, set(parameters(Queue.push)) - {"reply"}),  # which only `push` has: it gives a ticket
        (arguments.TakeArguments, parameters(Queue.take)),
    ],
)
def test_the_typed_arguments_are_those_there_are(typed: type, names: Iterable[str]) -> None:
    assert set(typed.__annotations__) == set(names), f"{typed.__name__} in penstock/core/model/arguments.py"


PASSED_ON = {
    "Task.push",
    "Task.push_async",
    "Task.ask",
    "Task.ask_async",
    "Task.call",
    "Task.__call__",
    "RunningTask.step",
    "step",
}
"""The arguments of these are those of the function that they call, now or later."""


def public_methods() -> Iterator[tuple[str, Any]]:
    """Every public function, and every method of a public class, here and for event loops."""
    offered = {name: getattr(home, name) for home in (aio, penstock) for name in home.__all__ if name != "errors"}
    for name, value in offered.items():
        if not isinstance(value, type):
            yield name, value
            continue
        for own in dir(value):
            member = inspect.getattr_static(value, own)
            if not own.startswith("_") and callable(member) and not isinstance(member, type):
                yield f"{name}.{own}", getattr(value, own)


def test_no_public_method_hides_arguments() -> None:
    hidden = [
        name
        for name, call in public_methods()
        if callable(call) and name not in PASSED_ON
        for one in inspect.signature(call).parameters.values()
        if one.kind is one.VAR_KEYWORD
    ]
    assert hidden == []


@pytest.mark.parametrize("call", [Topic.append, AsyncTopic.append, Transaction.append, Outbox.stage, AsyncOutbox.stage])
def test_help_shows_what_an_event_may_be_appended_with(call: Any) -> None:
    shown = inspect.signature(call).parameters
    assert [name for name in Draft.__struct_fields__ if name not in ("kind", "payload", "topic")] == list(shown)[-11:]
    assert shown["key"].default is None and shown["key"].kind is inspect.Parameter.KEYWORD_ONLY
    assert "dedup: 'str | None' = None" in pydoc.render_doc(call, renderer=pydoc.plaintext)


@pytest.mark.parametrize("call", [Queue.push_many, Queue.submit, AsyncQueue.push, Transaction.push])
def test_help_shows_what_a_message_may_be_pushed_with(call: Any) -> None:
    shown = inspect.signature(call).parameters
    assert (shown["kind"].default, shown["priority"].default, shown["delay"].default) == ("message", 0, 0)


def test_help_shows_what_stays_as_it_is() -> None:
    assert inspect.signature(Queue.configure).parameters["lease"].default is ...
    assert inspect.signature(Journal.queue).parameters["max_attempts"].default == QueuePolicy().max_attempts
    assert str(inspect.signature(Queue.take_many).parameters["lease"]) == "lease: 'Duration | None' = None"
