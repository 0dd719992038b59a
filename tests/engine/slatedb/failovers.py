"""Failovers without end: writers are killed, stopped, replaced, cut off; nothing acknowledged is missing or double.

    python tests/engine/slatedb/failovers.py --count 1000 --seed 1
    python tests/engine/slatedb/failovers.py --count 200 --seed 2 --store s3

Several processes want to write one journal: one does, the others stand by. Each appends events of its own, again under
the same dedup key when an outcome is unknown, and notes what was acknowledged in a file. What happens to the one that
writes is drawn by seed. In the end every note must be in the journal, at its position, once.
"""

from __future__ import annotations

import argparse
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

DEADLINE = 120.0
LEASE = 1.0

CHILD = """
import json, os, sys, time
import penstock
from penstock.errors import Fenced, Locked, StorageError

url, name, notes, mode, store, lease = sys.argv[1:]
out = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
try:
    journal = penstock.open(
        url, lease=float(lease), timeout=5, store_options=json.loads(store) or None,
        standby=mode == "standby", takeover=mode == "takeover",
    )
except Locked:
    sys.exit(0)
topic, number = journal.topic("t"), 0
os.write(out, f"writes {name} {os.getpid()}\\n".encode())
while True:
    id = f"{name}-{number}"
    try:
        receipt = topic.append("k", id, dedup=id)
    except Fenced:
        os.write(out, f"fenced {name}\\n".encode())
        os._exit(0)
    except StorageError:
        continue
    os.write(out, f"ack {receipt.seq} {id}\\n".encode())
    number += 1
    time.sleep(0.002)  # the writers of a thousand failovers leave a machine to others
"""


class Failovers:
    """One journal, and the processes that want to write it."""

    def __init__(self, url: str, folder: Path, seed: int, store: dict[str, Any], proxy: Any = None) -> None:
        self.url, self.store, self.proxy = url, store, proxy
        self.notes = folder / "notes"
        self.notes.touch()
        self.random = random.Random(seed)
        self.children: dict[int, subprocess.Popen[bytes]] = {}
        self.started = 0
        self.did: Counter[str] = Counter()
        self.seen = 0

    def start(self, mode: str = "standby") -> None:
        self.started += 1
        words = [self.url, f"c{self.started}", str(self.notes), mode, json.dumps(self.store), str(LEASE)]
        with (self.notes.parent / "complaints").open("ab") as complaints:
            child = subprocess.Popen([sys.executable, "-c", CHILD, *words], stderr=complaints)
        self.children[child.pid] = child

    def refill(self) -> None:
        """One that writes and one that stands by: a writer that was replaced ends a moment later."""
        for dead in [pid for pid, child in self.children.items() if child.poll() is not None]:
            del self.children[dead]
        while len(self.children) < 2:
            self.start()

    def run(self, count: int) -> None:
        """Makes so many failovers; Ctrl-C ends it earlier, and what there was is compared all the same."""
        try:
            for number in range(count):
                pid = self.wait_for_writer()
                self.happen(pid)
                if number % 50 == 49:
                    print(f"{number + 1} failovers: {dict(self.did)}", flush=True)
            self.wait_for_writer()
        except KeyboardInterrupt:
            print(f"stopped after {self.did.total()} failovers", flush=True)
        finally:
            for child in self.children.values():
                child.kill()
                child.wait(DEADLINE)

    def wait_for_writer(self) -> int:
        """The process that writes, once it has acknowledged something after the last failover."""
        deadline = time.monotonic() + DEADLINE
        while True:
            self.refill()
            lines = self.new_notes()
            begun = [line.split() for line in lines if line.startswith(b"writes")]
            acked = any(line.startswith(b"ack") for line in lines[-200:])
            if begun and acked and int(begun[-1][2]) in self.children:
                self.seen += sum(len(line) for line in lines)
                return int(begun[-1][2])
            if time.monotonic() > deadline:
                raise AssertionError(f"nobody writes any more, after {dict(self.did)}; {self.complaints()}")
            time.sleep(0.01)

    def new_notes(self) -> list[bytes]:
        """What the children noted since the writer was last found; a line that is not whole yet comes next time."""
        with self.notes.open("rb") as notes:
            notes.seek(self.seen)
            return [line for line in notes.read().splitlines(keepends=True) if line.endswith(b"\n")]

    def happen(self, pid: int) -> None:
        """Something bad to the process that writes, after which another one does."""
        time.sleep(self.random.random() * 0.15)
        kinds = ["kill", "kill", "kill", "takeover", "stop"] + (["cut"] if self.proxy else [])
        what = self.random.choice(kinds)
        self.did[what] += 1
        child = self.children[pid]
        if what == "kill":
            child.kill()
            child.wait(DEADLINE)
        elif what == "takeover":
            self.start("takeover")
        elif what == "stop":
            os.kill(pid, signal.SIGSTOP)
            os.waitpid(pid, os.WUNTRACED)
            self.wait_for_another(pid)
            os.kill(pid, signal.SIGCONT)
        else:
            self.proxy.cut()
            time.sleep(LEASE * (1 + self.random.random()))
            self.proxy.heal()
            child.kill()
            child.wait(DEADLINE)

    def wait_for_another(self, pid: int) -> None:
        deadline = time.monotonic() + DEADLINE
        while True:
            self.refill()
            lines = self.new_notes()
            if any(line.startswith(b"writes") and int(line.split()[2]) != pid for line in lines):
                return
            if time.monotonic() > deadline:
                raise AssertionError(f"nobody took over from a stopped writer; {self.complaints()}")
            time.sleep(0.02)

    def complaints(self) -> str:
        alive = [pid for pid, child in self.children.items() if child.poll() is None]
        said = (self.notes.parent / "complaints").read_text()
        return f"alive: {alive}; the children said: {said[-3000:]}"

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
        return len(acked)


def torture(count: int, seed: int, store: str) -> tuple[int, Counter[str]]:
    """Runs `count` failovers; how many events were acknowledged, and what happened how often."""
    with tempfile.TemporaryDirectory(prefix="penstock-failovers-") as name:
        folder = Path(name)
        if store == "folder":
            run = Failovers(f"slatedb:{folder / 'shop'}", folder, seed, {})
            run.run(count)
            return run.check(), run.did
        from store_proxy import StoreProxy

        from buffer.emulator import Emulator

        emulator = Emulator()
        proxy = StoreProxy(emulator.endpoint)
        try:
            options = {**emulator.options, "endpoint": proxy.endpoint}
            run = Failovers(f"{emulator.bucket()}/shop", folder, seed, options, proxy)
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
    given = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background has it ignored
    begun = time.monotonic()
    kept, did = torture(given.count, given.seed, given.store)
    took = time.monotonic() - begun
    print(f"{did.total()} failovers in {took:.0f} s ({dict(did)}):")
    print(f"{kept} acknowledged events, all there, each once")
