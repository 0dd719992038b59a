"""Two processes, one journal in object storage, one kill: what `penstock demo --failover` shows."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from penstock.cli.context import CommandContext
from penstock.errors import StorageError

BEFORE = 200
"""Events the first process has acknowledged when it is killed, and the second one after it."""

_WRITER = """
import sys
import penstock
import penstock.engine.slatedb.engine
print("stands by", flush=True)
journal = penstock.open(sys.argv[1], standby=True)
print("writes", flush=True)
while True:
    print(journal.topic("orders").append("placed", {"by": sys.argv[2]}).seq, flush=True)
"""


def show_failover(context: CommandContext) -> None:
    """Kills the process that writes, lets the one that stands by go on, and compares what both were promised."""
    import penstock.engine.slatedb.engine  # noqa: F401 - what is not installed is said here, not by processes that end
    from penstock.api import open_local

    with tempfile.TemporaryDirectory(prefix="penstock-failover-") as folder:
        url = f"slatedb:{Path(folder) / 'shop'}"
        first = _FailoverWriter(url, "the first")
        try:
            first.read(2)
            context.line("one process writes a journal in (what stands for) a bucket, another one stands by")
            second = _FailoverWriter(url, "the second")
            try:
                second.read(1)  # how long an interpreter takes to start is no part of a takeover
                first.read(2 + BEFORE)
                first.process.kill()
                killed = time.monotonic()
                first.read_rest()
                context.line(f"the first was killed after {len(first.acknowledged)} acknowledged events")
                second.read(3)
                took = time.monotonic() - killed
                context.line(f"the second acknowledged its first event {took:.1f} s later")
                second.read(2 + BEFORE)
            finally:
                second.process.kill()
                second.read_rest()
        finally:
            first.process.kill()
            first.process.wait()
        with open_local(url, read_only=True) as journal:
            kept = {event.seq for event in journal.topic("orders").read()}
    promised = first.acknowledged + second.acknowledged
    lost = len(set(promised) - kept)
    twice = len(promised) - len(set(promised))
    context.record(
        {
            "acknowledged": len(promised),
            "of them there": len(promised) - lost,
            "lost": lost,
            "given twice": twice,
            "seconds to take over": round(took, 1),
        }
    )
    if lost or twice:
        raise StorageError(f"{lost} acknowledged events are missing, {twice} positions were given twice")


class _FailoverWriter:
    """A process that appends without end, and the positions it was promised."""

    def __init__(self, url: str, name: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _WRITER, url, name], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._lines = 0
        self.acknowledged: list[int] = []

    def read(self, lines: int) -> None:
        """Waits until the process has said so many lines in all."""
        assert self.process.stdout is not None
        while self._lines < lines:
            line = self.process.stdout.readline()
            if not line:
                raise StorageError("a process of the demonstration ended by itself")
            self._record(line)

    def read_rest(self) -> None:
        """What a killed process had still said; a line cut off was not."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.endswith("\n"):
                self._record(line)
        self.process.stdout.close()
        self.process.wait()

    def _record(self, line: str) -> None:
        self._lines += 1
        if line.strip().isdigit():
            self.acknowledged.append(int(line))
