"""`top` at a terminal."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import termios
import time

import pytest


def read_until(terminal: int, sign: bytes, seconds: float = 60.0) -> bytes:
    """What a program shows until a sign appears."""
    shown, deadline = b"", time.monotonic() + seconds
    while sign not in shown:
        assert time.monotonic() < deadline, shown
        if select.select([terminal], [], [], 0.1)[0]:
            shown += os.read(terminal, 65536)
    return shown


@pytest.mark.slow
@pytest.mark.parametrize("key", [b"q", b"\x03"])
def test_q_leaves_top_and_the_terminal_is_as_it_was(orders: str, url: str, key: bytes) -> None:
    terminal, inside = pty.openpty()
    before = termios.tcgetattr(inside)
    command = [sys.executable, "-m", "penstock.cli", "top", "--interval", "60s", "--url", url]
    environment = {**os.environ, "TERM": "xterm"}
    process = subprocess.Popen(
        command, stdin=inside, stdout=inside, stderr=inside, env=environment, start_new_session=True, preexec_fn=_own
    )
    try:
        assert b"orders" in read_until(terminal, b"q leaves")
        os.write(terminal, b"x" + key)
        deadline = time.monotonic() + 60
        while process.poll() is None:
            assert time.monotonic() < deadline
            if select.select([terminal], [], [], 0.05)[0]:
                os.read(terminal, 65536)
        assert process.returncode == (130 if key == b"\x03" else 0)
        assert termios.tcgetattr(inside) == before
    finally:
        process.kill()
        process.wait()
        os.close(terminal)
        os.close(inside)


def _own() -> None:
    """Makes the pseudo-terminal the new session's own, so that Ctrl-C is a signal."""
    import fcntl

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
