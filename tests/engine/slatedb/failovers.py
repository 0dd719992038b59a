"""Failovers without end: writers are killed, stopped, replaced, cut off; nothing acknowledged is missing or double,
and no message is in two hands.

    python tests/engine/slatedb/failovers.py --count 1000 --seed 1
    python tests/engine/slatedb/failovers.py --count 200 --seed 2 --store s3

Several processes want to write one journal: one does, the others stand by. Each appends events of its own, again under
the same dedup key when an outcome is unknown, and notes what was acknowledged in a file. It pushes messages, takes
some, and acknowledges them, gives them back, keeps them for longer, or forgets them; a few kill whoever takes them.
What happens to the one that writes is drawn by seed. In the end every noted event must be in the journal, at its
position, once; every message must have been settled, or be there still; none may have been delivered while another had
it, after it was acknowledged, or more often than it may be.
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
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tests"), str(Path(__file__).parent)]

from store_proxy import StoreProxy  # noqa: E402

import penstock  # noqa: E402

DEADLINE = 600.0
"""Seconds after which nobody counts as writing any more: processes that leave the machine to others may take long."""
LEASES = {"folder": 1.0, "s3": 3.0}
"""Seconds; a request about the lease gets a third of it, and the emulator answers one request after the other."""

MAX_ATTEMPTS = 4
PROCESSES = 3
"""One that writes, one that was replaced and ends a moment later, and one that stands by."""

NURSERY = """
import faulthandler, itertools, json, os, random, signal, sys, tempfile, time
import penstock
import penstock.engines.slatedb.engine
from penstock.errors import Fenced, Locked, StaleDelivery, StorageError

MAX_ATTEMPTS = int(sys.argv[1])

def write(url, name, notes, mode, store, lease, timeout):
    out = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        journal = penstock.open(
            url, lease=lease, timeout=timeout, store_options=store or None,
            standby=mode == "standby", takeover=mode == "takeover",
        )
    except Locked:
        return
    def note(*words):
        os.write(out, (" ".join(map(str, words)) + "\\n").encode())

    def insist(act):
        while True:
            try:
                return act()
            except StorageError:  # not Fenced, which is the end
                continue

    chance, poisonous = random.Random(name), random.Random(name).random() < 0.15
    topic, queue = journal.topic("t"), journal.queue("work")
    try:
        insist(lambda: queue.configure(max_attempts=MAX_ATTEMPTS, dead_letter="dead"))
        for number in itertools.count():
            id = f"{name}-{number}"
            receipt = insist(lambda: topic.append("k", id, dedup=id))
            note("ack", receipt.seq, id)
            insist(lambda: queue.push({"id": id, "poison": poisonous and number == 3}, dedup=id))
            note("push", id)
            work(queue, note, chance)
            time.sleep(0.002)  # the writers of a thousand failovers leave a machine to others
    except Fenced:
        note("fenced", name)

def work(queue, note, chance):
    # Takes a message, and does with it what a consumer may do; an act is noted before it, and after it if it succeeded.
    lease = chance.choice([1, 2, 4])
    try:
        taken = queue.take(lease=lease)
    except StorageError:  # whether it took something is not known; it has nothing in its hands
        return
    if taken is None:
        return
    ms, token = round(taken.deadline.timestamp() * 1000), taken.token
    note("take", taken.payload["id"], token, taken.attempt, ms - lease * 1000, ms)
    if taken.payload["poison"]:
        os.kill(os.getpid(), signal.SIGKILL)
    verb = chance.choice(["ack"] * 6 + ["nack", "release", "extend", "forget"])
    if verb == "forget":
        return
    note("try", token, verb, int(time.time() * 1000))
    try:
        taken.extend(4) if verb == "extend" else getattr(taken, verb)()
    except (StorageError, StaleDelivery):
        return
    note("did", token, verb, round(taken.deadline.timestamp() * 1000))

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
        self, url: str, folder: Path, seed: int, lease: float, store: dict[str, Any], proxies: Sequence[StoreProxy] = ()
    ) -> None:
        self.url, self.lease, self.store, self.proxies = url, lease, store, proxies
        self.ways: dict[str, StoreProxy] = {}
        """Through which proxy each process reaches the store."""
        self.timeout = 5.0 if proxies else 30.0  # shorter than a cut, so that outcomes are unknown at times
        self.notes = folder / "notes"
        self.notes.touch()
        self.random = random.Random(seed)
        with (folder / "complaints").open("ab") as complaints:
            self.nursery = subprocess.Popen(
                [sys.executable, "-c", NURSERY, str(MAX_ATTEMPTS)],
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
        store = self.store
        if self.proxies:
            used = Counter(id(self.ways[other]) for other in self.children)
            way = self.ways[name] = min(self.proxies, key=lambda proxy: used[id(proxy)])
            store = {**store, "endpoint": way.endpoint}
        words = [self.url, name, str(self.notes), mode, store, self.lease, self.timeout]
        self.nursery.stdin.write(json.dumps(words) + "\n")
        child = self.children[name] = Child(int(self.nursery.stdout.readline()))
        return child

    def refill(self) -> None:
        """Starts processes in the place of those that have ended."""
        for dead in [name for name, child in self.children.items() if not child.state()]:
            del self.children[dead]
        while len(self.children) < PROCESSES:
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
        time.sleep(self.random.random() * 0.4)
        kinds = ["kill", "kill", "kill", "takeover", "stop"] + (["cut off", "outage"] if self.proxies else [])
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
            self.wait_for_another(stopped=child)
            child.send(signal.SIGCONT)
        elif what == "cut off":
            self.ways[name].cut()
            self.wait_for_another()
            self.ways[name].heal()
        else:
            for proxy in self.proxies:
                proxy.cut()
            time.sleep(self.lease * (1 + self.random.random()))
            for proxy in self.proxies:
                proxy.heal()
            child.kill()

    def wait_for_another(self, stopped: Child | None = None) -> None:
        """Until one acknowledges something to whom nothing bad happened: a writer that was stopped before and let go on
        may note its last acknowledgement only now.

        The stopped one is stopped again if it runs: the kernel lets a whole group of processes go on when the one that
        started the group has ended.
        """
        deadline = time.monotonic() + DEADLINE
        while self.hurt.issuperset(_acknowledged(self.new_notes())):
            self.refill()
            if stopped is not None and stopped.state() != "T":
                stopped.send(signal.SIGSTOP)
            if time.monotonic() > deadline:
                raise AssertionError(f"nobody took over; {self.complaints()}")
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
        """Every acknowledged event is there, at its position, once, and messages were where they should be; how many
        events there are."""
        acked: dict[int, str] = {}
        for line in self.notes.read_text().splitlines():
            if line.startswith("ack "):
                _, seq, id = line.split()
                assert acked.setdefault(int(seq), id) == id, f"position {seq} was given twice: {id}, {acked[int(seq)]}"
        with penstock.open(self.url, standby=True, store_options=self.store or None) as journal:
            events = {event.seq: event.payload for event in journal.topic("t").read()}
            left = take_all(journal.queue("work"))
            dead = {buried.payload["id"] for buried in iter(journal.queue("dead").take, None)}
        assert list(events) == list(range(1, len(events) + 1)), "positions have gaps"
        repeated = [id for id, count in Counter(events.values()).items() if count > 1]
        missing = {seq: id for seq, id in acked.items() if events.get(seq) != id}
        print(f"{len(acked)} acknowledged, {len(missing)} of them missing, {len(repeated)} kept twice; ", end="")
        print(f"{len(events)} events in all, {self.started} processes", flush=True)
        assert not repeated, f"kept twice: {repeated[:5]}"
        assert not missing, f"{len(missing)} acknowledged events are missing: {list(missing.items())[:5]}"
        check_messages(self.notes.read_text().splitlines() + left, dead)
        if self.failed is not None:
            raise self.failed
        return len(acked)


def _acknowledged(lines: list[bytes]) -> list[str]:
    """Whose the acknowledgements among the notes are, in their order."""
    return [line.decode().split()[2].partition("-")[0] for line in lines if line.startswith(b"ack")]


def take_all(queue: Any) -> list[str]:
    """Takes and acknowledges what there is, and what is there when the last leases have ended; as it would be noted."""
    notes = []
    deadline = time.monotonic() + DEADLINE
    while len(queue):
        for taken in queue.take_many(500, wait=1, lease=5):
            ms = round(taken.deadline.timestamp() * 1000)
            notes.append(f"take {taken.payload['id']} {taken.token} {taken.attempt} {ms - 5000} {ms}")
            notes.append(f"try {taken.token} ack {int(time.time() * 1000)}")
            taken.ack()
            notes.append(f"did {taken.token} ack {ms}")
        assert time.monotonic() < deadline, "the queue does not become empty"
    return notes


@dataclass
class Delivered:
    """One delivery as its consumer noted it; times in milliseconds of the one clock there is here."""

    attempt: int
    taken: int
    until: int
    freed: int | None = None
    """When its consumer began to acknowledge it, or to give it back."""
    verb: str = ""
    acked: bool = False


def check_messages(lines: list[str], dead: set[str]) -> None:
    """No message was in two hands, beyond its attempts, delivered after it was acknowledged, or lost."""
    pushed: set[str] = set()
    by_message: dict[str, list[Delivered]] = {}
    by_token: dict[str, Delivered] = {}
    for line in lines:
        word, *rest = line.split()
        if word == "push":
            pushed.add(rest[0])
        elif word == "take":
            one = by_token[rest[1]] = Delivered(int(rest[2]), int(rest[3]), int(rest[4]))
            by_message.setdefault(rest[0], []).append(one)
        elif word == "try" and rest[1] != "extend":
            by_token[rest[0]].verb, by_token[rest[0]].freed = rest[1], int(rest[2])
        elif word == "did":
            by_token[rest[0]].acked |= rest[1] == "ack"
            by_token[rest[0]].until = max(by_token[rest[0]].until, int(rest[2]))
    wrong = []
    for id, deliveries in by_message.items():
        deliveries.sort(key=lambda one: one.taken)
        for before, after in pairwise(deliveries):
            if before.acked:
                wrong.append(f"{id} was delivered after it was acknowledged: {before}, {after}")
            elif after.taken < (before.until if before.freed is None else before.freed):
                wrong.append(f"{id} was in two hands: {before}, {after}")
            elif after.attempt < before.attempt + (before.verb != "release"):
                wrong.append(f"an attempt at {id} was not counted: {before}, {after}")
        if deliveries[-1].attempt > MAX_ATTEMPTS:
            wrong.append(f"{id} was delivered too often: {deliveries[-1]}")
        if id in dead and any(one.acked for one in deliveries):
            wrong.append(f"{id} was acknowledged, and is a dead letter")
    settled = {id for id, deliveries in by_message.items() if any(one.verb == "ack" for one in deliveries)}
    lost = pushed - settled - dead
    print(f"{len(pushed)} messages, {len(by_token)} deliveries, {len(dead)} dead letters, ", end="")
    print(f"{len(lost)} messages lost, {len(wrong)} deliveries wrong", flush=True)
    assert not wrong, wrong[:5]
    assert not lost, f"lost: {sorted(lost)[:5]}"


def torture(count: int, seed: int, store: str, lease: float = 0.0) -> tuple[int, Counter[str]]:
    """Runs `count` failovers; how many events were acknowledged, and what happened how often."""
    with tempfile.TemporaryDirectory(prefix="penstock-failovers-") as name:
        folder = Path(name)
        lease = lease or LEASES[store]
        if store == "folder":
            run = Failovers(f"slatedb:{folder / 'shop'}", folder, seed, lease, {})
            run.run(count)
            return run.check(), run.did
        from buffer.emulator import Emulator

        emulator = Emulator()
        proxies = [StoreProxy(emulator.endpoint) for _ in range(PROCESSES)]
        try:
            run = Failovers(f"{emulator.bucket()}/shop", folder, seed, lease, emulator.options, proxies)
            run.run(count)
            return run.check(), run.did
        finally:
            for proxy in proxies:
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
    print(f"{kept} acknowledged events, all there, each once; no message lost, in two hands or beyond its attempts")
