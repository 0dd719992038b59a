"""Keyword arguments: typed one by one, and what is misspelt is named."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from penstock import Draft, Queue, QueuePolicy, Settings
from penstock.surface import arguments

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
    import inspect

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
    assert set(typed.__annotations__) == set(names), f"{typed.__name__} in penstock/surface/arguments.py"
