"""penstock for event loops: handles of the same names whose calls are awaitable and whose iterators work with `async
for`.

>>> async with await penstock.aio.open("shop.db") as journal:
...     orders = journal.topic("orders")
...     await orders.append("order.placed", {"total": 40})
...     async for event in orders.read():
...         print(event.seq, event.payload)

    handles       the handles, method by method those of `penstock.core.surface`
    running       how their calls run beside the loop

A cancelled call releases its result: a journal or a subscription is closed, deliveries are released.

Transactions and fences hold a thread, so they have no form here: run such a block in `asyncio.to_thread`. Workers and
subscriptions are the objects of `penstock`, which event loops can use directly.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

from penstock.aio.handles import AsyncDelivery, AsyncJournal, AsyncOutbox, AsyncQueue, AsyncTopic
from penstock.aio.running import close
from penstock.api import open as open_journal
from penstock.core.consuming.handover import hand_over
from penstock.core.surface.journal import Journal
from penstock.core.surface.receiving import AsyncReceiver

__all__ = ["AsyncDelivery", "AsyncJournal", "AsyncOutbox", "AsyncQueue", "AsyncReceiver", "AsyncTopic", "open"]


P = ParamSpec("P")


def _opening(open: Callable[P, Journal]) -> Callable[P, Coroutine[Any, Any, AsyncJournal]]:
    """Opens a journal, here or behind a url, for an event loop; the arguments are the arguments of `penstock.open`."""

    @functools.wraps(open)
    async def call(*args: P.args, **options: P.kwargs) -> AsyncJournal:
        return AsyncJournal(await hand_over(lambda: open(*args, **options), close))

    return call


open = _opening(open_journal)
