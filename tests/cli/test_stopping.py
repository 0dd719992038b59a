"""Signals that ask for the end are noted, however many come and whenever they do."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from penstock.cli.queues import StopSignals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_wait_and_the_old_handler_comes_back(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with StopSignals() as stop:
        assert not stop.wait(0.01) and not stop.asked
        threading.Timer(0.05, os.kill, (os.getpid(), number)).start()
        begun = time.monotonic()
        assert stop.wait(60) and time.monotonic() - begun < 30
        assert stop.wait(60) and stop.asked
    assert signal.getsignal(number) is before


def test_a_signal_at_any_moment_of_a_wait_does_not_hang_it() -> None:
    for _ in range(500):
        with StopSignals() as stop:
            killer = threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGTERM))
            killer.start()
            assert stop.wait(60)
            killer.join()
