"""How tests wait: for the thing itself, with one deadline for all of them.

A hang is a failure after minutes; no machine is so busy that what should happen at once takes as long.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

DEADLINE = 300.0
"""Seconds that a test waits for what should happen at once."""


def eventually(condition: Callable[[], T], what: str = "") -> T:
    """Waits until a condition holds and returns what it gave."""
    deadline = time.monotonic() + DEADLINE
    while not (found := condition()):
        assert time.monotonic() < deadline, f"did not happen: {what or condition}"
        time.sleep(0.001)
    return found


async def eventually_async(condition: Callable[[], T], what: str = "") -> T:
    """Waits until a condition holds, in turns of the event loop, and returns what it gave."""
    deadline = time.monotonic() + DEADLINE
    while not (found := condition()):
        assert time.monotonic() < deadline, f"did not happen: {what or condition}"
        await asyncio.sleep(0.001)
    return found
