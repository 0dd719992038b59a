"""What a worker was decoding when its process crashed.

A fault inside a library (Arrow's JSON reader has had some) ends the process, and with it every chance to say anything.
What is left is the traceback that `faulthandler` writes at that moment, which Spark puts into the task's error. It has
the names of files and nothing else of use; so the events that are being decoded stand there as one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from types import FunctionType
from typing import TypeVar

T = TypeVar("T")

_MARK = "penstock, decoding "
_CRASHED = re.compile(r"Fatal Python error: ([^\n]+)")
_EVENTS = re.compile(rf'File "{_MARK}([^"\n]+)"')


def _do(work: Callable[[], object]) -> object:
    return work()


def decoding(topic: str, first: int, last: int, work: Callable[[], T]) -> T:
    """What `work` gives; should the process crash meanwhile, its traceback names the events."""
    code = _do.__code__.replace(co_filename=f"{_MARK}topic {topic}, events {first} to {last}")
    found: T = FunctionType(code, {})(work)
    return found


def crash_of(text: str) -> str | None:
    """What Spark's error of a crashed task says about the events it was decoding; None when it is of another kind."""
    crashed, events = _CRASHED.search(text), _EVENTS.search(text)
    if crashed is None or events is None:
        return None
    return (
        f"a worker crashed ({crashed[1].strip()}) while it decoded payloads of {events[1]}: they would do it "
        "again. Leave them out (startingOffsets, kinds, keys), or read them without payloadSchema"
    )
