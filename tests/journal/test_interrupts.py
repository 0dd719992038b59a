"""Signals that arrive in the middle of a commit wait until it is done."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import FrameType

import pytest

import penstock
from penstock.core.journal.commit import Commit
from penstock.core.journal.writer import Shield, always_busy, is_inside


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Puts the handlers back that a test may have changed."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        assert signal.getsignal(number) == handler or number == signal.SIGTERM
        signal.signal(number, handler)


def test_an_interrupt_waits_for_the_end_of_the_block() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), Shield(always_busy):
        signal.raise_signal(signal.SIGINT)
        done.append("still here")
    assert done == ["still here"]


def test_a_second_interrupt_does_not_wait() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), Shield(always_busy):
        signal.raise_signal(signal.SIGINT)
        done.append("first")
        signal.raise_signal(signal.SIGINT)
        done.append("second")
    assert done == ["first"]


def test_who_is_not_busy_is_interrupted_at_once() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), Shield(lambda frame: False):
        signal.raise_signal(signal.SIGINT)
        done.append("too late")
    assert done == []


def test_a_services_own_handler_waits_too() -> None:
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(3))
    done = []
    with pytest.raises(SystemExit), Shield(always_busy):
        signal.raise_signal(signal.SIGTERM)
        done.append("still here")
    assert done == ["still here"]


def test_handlers_are_as_they_were_and_newer_ones_stay() -> None:
    def newer(number: int, frame: FrameType | None) -> None:
        pass

    before = signal.getsignal(signal.SIGINT)
    shield = Shield(always_busy)
    for _ in range(3):
        with shield:
            assert signal.getsignal(signal.SIGINT) != before
        assert signal.getsignal(signal.SIGINT) == before
    with shield:
        signal.signal(signal.SIGTERM, newer)
    assert signal.getsignal(signal.SIGTERM) is newer and signal.getsignal(signal.SIGINT) == before


def test_other_threads_change_nothing() -> None:
    seen = []

    def work() -> None:
        with Shield(always_busy):
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(daemon=True, target=work)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGINT)]


def test_a_frame_is_inside_the_functions_that_led_to_it() -> None:
    def inner() -> FrameType:
        return sys._getframe()

    def outer() -> FrameType:
        return inner()

    frame = outer()
    assert is_inside(frame, [inner.__code__]) and is_inside(frame, [always_busy.__code__, outer.__code__])
    assert not is_inside(frame, [always_busy.__code__]) and not is_inside(None, [inner.__code__])


def test_an_interrupt_inside_a_commit_comes_after_it_and_the_event_is_kept() -> None:
    with penstock.open("memory:") as journal:
        topic = journal.topic("t")
        batch = topic._at.prepare("k", 1, {})

        def interrupted(commit: Commit) -> None:
            signal.raise_signal(signal.SIGINT)
            commit.append("t", batch)

        with pytest.raises(KeyboardInterrupt):
            journal._core.run(interrupted)
        assert topic.latest == 1 and topic.append("k").seq == 2


def test_an_interrupt_inside_a_transactions_body_rolls_it_back() -> None:
    with penstock.open("memory:") as journal:
        with pytest.raises(KeyboardInterrupt), journal.transaction() as tx:
            tx.append("t", "k")
            signal.raise_signal(signal.SIGINT)
        assert journal.topics() == [] and journal.topic("t").append("k").seq == 1


SUBINTERPRETER = """
import _xxsubinterpreters as interpreters
interpreters.run_string(interpreters.create(), '''
import penstock
try:
    penstock.open("memory:")
except penstock.errors.ConfigError as error:
    print(error, flush=True)
''')
"""


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="from 3.12 on, msgspec cannot be imported there")
def test_a_journal_in_a_subinterpreter_is_refused_with_a_sentence() -> None:
    done = subprocess.run([sys.executable, "-c", SUBINTERPRETER], capture_output=True, text=True, timeout=60)
    assert "main interpreter" in done.stdout, done.stderr
