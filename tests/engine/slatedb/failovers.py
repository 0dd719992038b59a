"""Failovers without end: writers are killed, stopped, replaced, cut off; nothing acknowledged is missing or double.

    python tests/engine/slatedb/failovers.py --count 1000 --seed 1
    python tests/engine/slatedb/failovers.py --count 200 --seed 2 --store s3

Several processes want to write one journal: one does, the others stand by. Each appends events of its own, again under
the same dedup key when an outcome is unknown, and notes what was acknowledged in a file. What happens to the one that
writes is drawn by seed. In the end every note must be in the journal, at its position, once.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tests"), str(Path(__file__).parent)]

import penstock  # noqa: E402

DEADLINE = 600.0
"""Seconds after which nobody counts as writing any more: processes that leave the machine to others may take long."""
LEASES = {"folder": 1.0, "s3": 3.0}
"""Seconds; a request about the lease gets a third of it, and the emulator answers one request after the other."""

NURSERY = """
import faulthandler, json, os, signal, sys, tempfile, time
import penstock
import penstock.engine.slatedb.engine
from penstock.errors import Fenced, Locked, StorageError

def write(url, name, notes, mode, store, lease, timeout):
    out = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        journal = penstock.open(
            url, lease=lease, timeout=timeout, store_options=store or None,
            standby=mode == "standby", takeover=mode == "takeover",
        )
    except Locked:
        return
    topic, number = journal.topic("t"), 0
    while True:
        id = f"{name}-{number}"
        try:
            receipt = topic.append("k", id, dedup=id)
        except Fenced:
            os.write(out, f"fenced {name}\\n".encode())
            return
        except StorageError:
            continue
        os.write(out, f"ack {receipt.seq} {id}\\n".encode())
        number += 1
        time.sleep(0.002)  # the writers of a thousand failovers leave a machine to others

with tempfile.TemporaryDirectory() as folder, penstock.open(f"{folder}/warm.db") as warm:
    warm.topic("t").append("k", 1, dedup="1")  # has everything imported but what starts SlateDB's threads
faulthandler.register(signal.SIGUSR1)  # where a child hangs, should it
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the children: they leave nothing behind
for line in sys.stdin:
    child = os.fork()
    if child:
        print(child, flush=True)
        continue
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    code = 1
    try:
        write(*json.loads(line))
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
    os._exit(code)
"""
"""Forks the processes that write: to start Python and import everything would be most of a failover's time. Nothing in
it has called SlateDB, whose threads would not survive that."""


class Child:
    """A process that writes or stands by; told from a later one of the same number by when it began."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._began = (self._stat() or [""] * 20)[19]

    def _stat(self) -> list[str]:
        """The fields of /proc/PID/stat after the program's name: the state is the first, the start the twentieth."""
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return []

    def state(self) -> str:
        """R, S, T (stopped) …, as the system says; empty when it is gone."""
        now = self._stat()
        return now[0] if now and now[19] == self._began and now[0] not in "ZX" else ""

    def send(self, number: signal.Signals) -> None:
        if self.state():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Ends it at once, and returns when it has ended."""
        self.send(signal.SIGKILL)
        self.wait_for("")

    def wait_for(self, *states: str) -> None:
        deadline = time.monotonic() + DEADLINE
        while (now := self.state()) and now not in states:
            assert time.monotonic() < deadline, f"process {self.pid} is still {now!r}"
            time.sleep(0.002)


class Failovers:
    """One journal, and the processes that want to write it."""

    def __init__(
        self, url: str, folder: Path, seed: int, lease: float, store: dict[str, Any], proxy: Any = None
    ) -> None:
        self.url, self.lease, self.store, self.proxy = url, lease, store, proxy
        self.timeout = 30.0 if proxy is None else 5.0  # shorter than a cut, so that outcomes are unknown at times
        self.notes = folder / "notes"
        self.notes.touch()
        self.random = random.Random(seed)
        with (folder / "complaints").open("ab") as complaints:
            self.nursery = subprocess.Popen(
                [sys.executable, "-c", NURSERY],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=complaints, text=True, bufsize=1,
            )  # fmt: skip
        self.children: dict[str, Child] = {}
        self.started = 0
        self.did: Counter[str] = Counter()
        self.seen = 0
        self.hurt: set[str] = set()
        self.taker: Child | None = None
        self.failed: AssertionError | None = None

    def start(self, mode: str = "standby") -> Child:
        self.started += 1
        name = f"c{self.started}"
        assert self.nursery.stdin is not None and self.nursery.stdout is not None
        words = [self.url, name, str(self.notes), mode, self.store, self.lease, self.timeout]
        self.nursery.stdin.write(json.dumps(words) + "\n")
        child = self.children[name] = Child(int(self.nursery.stdout.readline()))
        return child

    def refill(self) -> None:
        """One that writes and one that stands by: a writer that was replaced ends a moment later."""
        for dead in [name for name, child in self.children.items() if not child.state()]:
            del self.children[dead]
        while len(self.children) < 2:
            self.start()

    def run(self, count: int) -> None:
        """Makes so many failovers; Ctrl-C ends it earlier, and what there was is compared all the same."""
        try:
            for number in range(count):
                self.happen(self.wait_for_writer())
                if number % 50 == 49:
                    print(f"{number + 1} failovers: {dict(self.did)}", flush=True)
            self.wait_for_writer()
        except KeyboardInterrupt:
            print(f"stopped after {self.did.total()} failovers", flush=True)
        except AssertionError as error:
            print(f"ended after {self.did.total()} failovers: {error}", flush=True)
            self.failed = error
        finally:
            for child in self.children.values():
                child.kill()
            self.nursery.communicate(timeout=DEADLINE)

    def wait_for_writer(self) -> str:
        """The name of the process that writes: whose acknowledgement is the newest, and to whom nothing bad happened.

        Where a machine leaves processes no time, leases run out by themselves, and one says that it has begun to write
        after it was replaced: only acknowledgements tell.
        """
        deadline = time.monotonic() + DEADLINE
        while True:
            self.refill()
            lines = self.new_notes()
            name = next(reversed(_acknowledged(lines)), "")
            if name in self.children and name not in self.hurt:
                self.seen += sum(len(line) for line in lines)
                self.taker = None
                return name
            if self.taker is not None and not self.taker.state():  # it gave up before it had the lease, or ended since
                self.taker = self.start("takeover")
            if time.monotonic() > deadline:
                raise AssertionError(f"nobody writes any more, after {dict(self.did)}; {self.complaints()}")
            time.sleep(0.01)

    def new_notes(self) -> list[bytes]:
        """What the children noted since the writer was last found; a line that is not whole yet comes next time."""
        with self.notes.open("rb") as notes:
            notes.seek(self.seen)
            return [line for line in notes.read().splitlines(keepends=True) if line.endswith(b"\n")]

    def happen(self, name: str) -> None:
        """Something bad to the process that writes, after which another one does."""
        time.sleep(self.random.random() * 0.15)
        kinds = ["kill", "kill", "kill", "takeover", "stop"] + (["cut"] if self.proxy else [])
        what = self.random.choice(kinds)
        self.did[what] += 1
        self.hurt.add(name)
        child = self.children[name]
        if what == "kill":
            child.kill()
        elif what == "takeover":
            self.taker = self.start("takeover")
        elif what == "stop":
            child.send(signal.SIGSTOP)
            child.wait_for("T")
            self.wait_for_another(child)
            child.send(signal.SIGCONT)
        else:
            self.proxy.cut()
            time.sleep(self.lease * (1 + self.random.random()))
            self.proxy.heal()
            child.kill()

    def wait_for_another(self, child: Child) -> None:
        """Until one acknowledges something to whom nothing bad happened: a writer that was stopped before and let go on
        may note its last acknowledgement only now.

        The stopped one is stopped again if it runs: the kernel lets a whole group of processes go on when the one that
        started the group has ended.
        """
        deadline = time.monotonic() + DEADLINE
        while self.hurt.issuperset(_acknowledged(self.new_notes())):
            self.refill()
            if child.state() != "T":
                child.send(signal.SIGSTOP)
            if time.monotonic() > deadline:
                raise AssertionError(f"nobody took over from a stopped writer; {self.complaints()}")
            time.sleep(0.02)

    def complaints(self) -> str:
        """What the children said, where those that live are, and the last they noted."""
        alive = [child.pid for child in self.children.values() if child.state()]
        for pid in alive:
            with (self.notes.parent / "complaints").open("ab") as complaints:
                complaints.write(f"process {pid}:\n".encode())
            os.kill(pid, signal.SIGUSR1)  # a stopped one does not answer
            time.sleep(0.5)
        said = (self.notes.parent / "complaints").read_text()
        noted = self.notes.read_text().splitlines()[-5:]
        return f"alive: {alive}; noted: {noted}; the children said: {said[-9000:]}"

    def check(self) -> int:
        """Every acknowledged event is there, at its position, once; how many there are."""
        acked: dict[int, str] = {}
        for line in self.notes.read_text().splitlines():
            if line.startswith("ack "):
                _, seq, id = line.split()
                assert acked.setdefault(int(seq), id) == id, f"position {seq} was given twice: {id}, {acked[int(seq)]}"
        with penstock.open(self.url, standby=True, store_options=self.store or None) as journal:
            events = {event.seq: event.payload for event in journal.topic("t").read()}
        assert list(events) == list(range(1, len(events) + 1)), "positions have gaps"
        repeated = [id for id, count in Counter(events.values()).items() if count > 1]
        missing = {seq: id for seq, id in acked.items() if events.get(seq) != id}
        print(f"{len(acked)} acknowledged, {len(missing)} of them missing, {len(repeated)} kept twice; ", end="")
        print(f"{len(events)} events in all, {self.started} processes", flush=True)
        assert not repeated, f"kept twice: {repeated[:5]}"
        assert not missing, f"{len(missing)} acknowledged events are missing: {list(missing.items())[:5]}"
        if self.failed is not None:
            raise self.failed
        return len(acked)


def _acknowledged(lines: list[bytes]) -> list[str]:
    """Whose the acknowledgements among the notes are, in their order."""
    return [line.decode().split()[2].partition("-")[0] for line in lines if line.startswith(b"ack")]


def torture(count: int, seed: int, store: str, lease: float = 0.0) -> tuple[int, Counter[str]]:
    """Runs `count` failovers; how many events were acknowledged, and what happened how often."""
    with tempfile.TemporaryDirectory(prefix="penstock-failovers-") as name:
        folder = Path(name)
        lease = lease or LEASES[store]
        if store == "folder":
            run = Failovers(f"slatedb:{folder / 'shop'}", folder, seed, lease, {})
            run.run(count)
            return run.check(), run.did
        from store_proxy import StoreProxy

        from buffer.emulator import Emulator

        emulator = Emulator()
        proxy = StoreProxy(emulator.endpoint)
        try:
            options = {**emulator.options, "endpoint": proxy.endpoint}
            run = Failovers(f"{emulator.bucket()}/shop", folder, seed, lease, options, proxy)
            run.run(count)
            return run.check(), run.did
        finally:
            proxy.heal()
            proxy.stop()
            emulator.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--store", choices=["folder", "s3"], default="folder")
    parser.add_argument("--lease", type=float, default=0.0, metavar="SECONDS", help=f"instead of {LEASES}")
    given = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background has it ignored
    begun = time.monotonic()
    kept, did = torture(given.count, given.seed, given.store, given.lease)
    took = time.monotonic() - begun
    print(f"{did.total()} failovers in {took:.0f} s ({dict(did)}):")
    print(f"{kept} acknowledged events, all there, each once")
