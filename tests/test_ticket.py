"""Tickets: polled, waited for by threads, awaited by event loops."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta

import pytest

from penstock import Ticket
from penstock.core.ticket import wake
from penstock.errors import ConfigError
from waiting import DEADLINE


class Failure(Exception):
    pass


def test_a_result_is_there_once_resolved() -> None:
    ticket: Ticket[int] = Ticket()
    assert not ticket.done()
    ticket.resolve(5)
    assert ticket.done() and ticket.result() == ticket.result(0) == 5 and ticket.exception() is None


def test_none_is_a_result() -> None:
    ticket: Ticket[None] = Ticket()
    ticket.resolve(None)
    assert ticket.done() and ticket.result(0) is None  # type: ignore[func-returns-value]


def test_a_failure_is_raised_or_returned() -> None:
    ticket: Ticket[int] = Ticket()
    failure = Failure("broken")
    ticket.fail(failure)
    with pytest.raises(Failure) as raised:
        ticket.result()
    assert raised.value is failure and ticket.exception() is failure


def test_a_failure_that_is_a_timeout_is_not_a_timeout_of_waiting() -> None:
    ticket: Ticket[int] = Ticket()
    ticket.fail(TimeoutError("of the work itself"))
    assert isinstance(ticket.exception(0), TimeoutError)
    with pytest.raises(TimeoutError, match="work itself"):
        ticket.result(0)


@pytest.mark.parametrize("timeout", [0, 0.001, timedelta(milliseconds=1)])
def test_waiting_ends_after_the_timeout(timeout: float | timedelta) -> None:
    ticket: Ticket[int] = Ticket()
    for _ in range(3):
        with pytest.raises(TimeoutError):
            ticket.result(timeout)
        with pytest.raises(TimeoutError):
            ticket.exception(timeout)
    assert not ticket._waiters  # whoever gave up is forgotten
    ticket.resolve(1)
    assert ticket.result() == 1


@pytest.mark.parametrize("timeout", [-1, "soon", float("nan"), True])
def test_a_bad_timeout_is_refused(timeout: object) -> None:
    ticket: Ticket[int] = Ticket()
    with pytest.raises(ConfigError):
        ticket.result(timeout)  # type: ignore[arg-type]


def test_a_timeout_of_ninety_years_is_one() -> None:
    ticket: Ticket[int] = Ticket()
    timer = threading.Timer(0.01, ticket.resolve, (3,))
    timer.start()
    assert ticket.result(timedelta(days=90 * 365)) == 3
    timer.join()


def test_every_waiting_thread_is_woken() -> None:
    ticket: Ticket[int] = Ticket()
    got: list[int] = []
    threads = [threading.Thread(target=lambda: got.append(ticket.result(DEADLINE)), daemon=True) for _ in range(20)]
    for thread in threads:
        thread.start()
    ticket.resolve(7)
    for thread in threads:
        thread.join(DEADLINE)
    assert got == [7] * 20


def test_resolving_races_with_waiting_and_nobody_is_left() -> None:
    for _ in range(300):
        ticket: Ticket[int] = Ticket()
        got: list[int] = []
        thread = threading.Thread(
            target=lambda got=got, ticket=ticket: got.append(ticket.result(DEADLINE)), daemon=True
        )
        thread.start()
        ticket.resolve(1)
        thread.join(DEADLINE)
        assert got == [1]


def test_loops_and_threads_may_wait_for_one_ticket_together() -> None:
    ticket: Ticket[int] = Ticket()
    got: list[int] = []
    waiting = threading.Barrier(5)

    async def awaiting() -> int:
        async def one() -> int:
            return await ticket

        tasks = [asyncio.ensure_future(one()) for _ in range(3)]
        await asyncio.sleep(0)
        waiting.wait(DEADLINE)
        return sum(await asyncio.gather(*tasks))

    def in_loop() -> None:
        got.append(asyncio.run(awaiting()))

    def in_thread() -> None:
        waiting.wait(DEADLINE)
        got.append(ticket.result(DEADLINE))

    threads = [threading.Thread(target=work, daemon=True) for work in (in_loop, in_loop, in_thread, in_thread)]
    for thread in threads:
        thread.start()
    waiting.wait(DEADLINE)
    ticket.resolve(2)
    for thread in threads:
        thread.join(DEADLINE)
    assert sorted(got) == [2, 2, 6, 6]


def test_an_await_raises_the_failure() -> None:
    async def work() -> None:
        ticket: Ticket[int] = Ticket()
        asyncio.get_running_loop().call_later(0.001, ticket.fail, Failure("later"))
        with pytest.raises(Failure, match="later"):
            await ticket
        with pytest.raises(Failure):
            await ticket

    asyncio.run(work())


def test_a_closed_loop_is_no_ones_problem() -> None:
    ticket: Ticket[int] = Ticket()

    async def give_up() -> None:
        async def one() -> int:
            return await ticket

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(one(), 0.001)

    asyncio.run(give_up())
    ticket.resolve(1)
    assert ticket.result(0) == 1


def test_many_settled_tickets_are_woken_together() -> None:
    async def work() -> list[int]:
        tickets: list[Ticket[int]] = [Ticket() for _ in range(100)]

        async def one(ticket: Ticket[int]) -> int:
            return await ticket

        tasks = [asyncio.ensure_future(one(ticket)) for ticket in tickets]
        await asyncio.sleep(0)

        def resolve() -> None:
            for n, ticket in enumerate(tickets):
                ticket.set_outcome(n, None)
            wake(tickets)

        await asyncio.to_thread(resolve)
        return await asyncio.gather(*tasks)

    assert asyncio.run(work()) == list(range(100))
