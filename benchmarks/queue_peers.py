"""The queues penstock is measured beside, each told to be as durable: a push or an acknowledgement that returned is on disk.

A peer that is not there (not installed, or its server not on this machine) says so in the table; it is never left out.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import penstock


class Contestant:
    """One queue. `many`: it can push a batch, `takes_many`: also take one; `acknowledges`: taking is not yet settling."""

    name = ""
    embedded = True
    acknowledges = True
    many = False
    takes_many = True
    version = ""

    def push(self, payload: str) -> None:
        raise NotImplementedError

    def take_ack(self) -> None:
        raise NotImplementedError

    def push_many(self, payloads: list[str]) -> None:
        raise NotImplementedError

    def take_ack_many(self, count: int) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Lets go of files and servers."""


class Penstock(Contestant):
    name = "penstock"
    many = True

    def __init__(self, folder: Path, scheme: str = "sqlite") -> None:
        self.journal = penstock.open(f"{scheme}:{folder / ('penstock-' + scheme)}")
        self.queue = self.journal.queue("jobs")
        self.version = penstock.__version__

    def push(self, payload: str) -> None:
        self.queue.push(payload)

    def take_ack(self) -> None:
        delivery = self.queue.take()
        assert delivery is not None and delivery.payload
        delivery.ack()

    def push_many(self, payloads: list[str]) -> None:
        self.queue.push_many(payloads)

    def take_ack_many(self, count: int) -> None:
        deliveries = self.queue.take_many(count)
        assert len([delivery.payload for delivery in deliveries]) == count
        assert self.queue.ack_many(deliveries) == count

    def close(self) -> None:
        self.journal.close()


class PersistQueue(Contestant):
    name = "persist-queue"

    def __init__(self, folder: Path) -> None:
        import persistqueue

        self.version = persistqueue.__version__
        self.queue = persistqueue.SQLiteAckQueue(str(folder / "persist"), auto_commit=True, multithreading=True)
        self.queue._conn.execute("PRAGMA synchronous=FULL")

    def push(self, payload: str) -> None:
        self.queue.put(payload)

    def take_ack(self) -> None:
        item = self.queue.get(block=False)
        assert item
        self.queue.ack(item)

    def close(self) -> None:
        self.queue.close()


class LiteQueue(Contestant):
    name = "litequeue"
    takes_many = False

    def __init__(self, folder: Path) -> None:
        from importlib import metadata

        import litequeue

        self.version = metadata.version("litequeue")
        self.queue = litequeue.LiteQueue(str(folder / "lite.db"))
        self.queue.conn.execute("PRAGMA synchronous=FULL")

    def push(self, payload: str) -> None:
        self.queue.put(payload)

    def take_ack(self) -> None:
        message = self.queue.pop()
        assert message.data
        self.queue.done(message.message_id)

    def push_many(self, payloads: list[str]) -> None:
        with self.queue.transaction():
            for payload in payloads:
                self.queue.put(payload)

    many = True

    def take_ack_many(self, count: int) -> None:
        messages = []
        for _ in range(count):  # each pop is a transaction of its own
            messages.append(self.queue.pop())
        with self.queue.transaction():
            for message in messages:
                self.queue.conn.execute(
                    f"UPDATE {self.queue.table} SET status = 2, done_time = ? WHERE message_id = ?",
                    (time.time_ns(), message.message_id),
                )

    def close(self) -> None:
        self.queue.close()


class LocalQueue(Contestant):
    name = "localqueue"
    many = True
    takes_many = False

    def __init__(self, folder: Path) -> None:
        from importlib import metadata

        import localqueue

        self.version = metadata.version("localqueue")
        self.queue = localqueue.SimpleQueue(str(folder / "local"), durability=localqueue.DurabilityMode.DURABLE)

    def push(self, payload: str) -> None:
        self.queue.put(payload)

    def take_ack(self) -> None:
        job = self.queue.get_nowait()
        assert job.data
        self.queue.ack(job)

    def push_many(self, payloads: list[str]) -> None:
        self.queue.put_many(payloads)

    def take_ack_many(self, count: int) -> None:
        for job in [self.queue.get_nowait() for _ in range(count)]:  # it has no batches for taking
            self.queue.ack(job)

    def close(self) -> None:
        self.queue.close()


class Huey(Contestant):
    """Taking removes: there is nothing to acknowledge, and what a worker dies with is lost."""

    name = "huey (SqliteStorage)"
    acknowledges = False

    def __init__(self, folder: Path) -> None:
        from importlib import metadata

        from huey.storage import SqliteStorage

        self.version = metadata.version("huey")
        self.queue = SqliteStorage("jobs", filename=str(folder / "huey.db"), fsync=True)

    def push(self, payload: str) -> None:
        self.queue.enqueue(payload.encode())

    def take_ack(self) -> None:
        assert self.queue.dequeue()

    def close(self) -> None:
        self.queue.close()


class RedisStreams(Contestant):
    embedded = False
    many = True

    def __init__(self, folder: Path, fsync: str) -> None:
        import redis

        server = shutil.which("redis-server")
        if server is None:
            raise ImportError("redis-server is not on this machine")
        self.name = f"Redis Streams, appendfsync {fsync}"
        home = folder / f"redis-{fsync}"
        home.mkdir()
        socket = home / "s"
        options = ["--port", "0", "--unixsocket", str(socket), "--dir", str(home), "--save", ""]
        options += ["--appendonly", "yes", "--appendfsync", fsync, "--auto-aof-rewrite-percentage", "0"]
        self._server = subprocess.Popen([server, *options], stdout=subprocess.DEVNULL)
        self.client: Any = redis.Redis(unix_socket_path=str(socket), decode_responses=False)
        deadline = time.monotonic() + 30
        while True:
            try:
                self.client.ping()
                break
            except redis.ConnectionError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
        self.version = self.client.info("server")["redis_version"]
        self.client.xgroup_create("jobs", "workers", mkstream=True)

    def push(self, payload: str) -> None:
        self.client.xadd("jobs", {b"p": payload})

    def take_ack(self) -> None:
        self.take_ack_many(1)

    def push_many(self, payloads: list[str]) -> None:
        pipe = self.client.pipeline(transaction=True)
        for payload in payloads:
            pipe.xadd("jobs", {b"p": payload})
        pipe.execute()

    def take_ack_many(self, count: int) -> None:
        found = self.client.xreadgroup("workers", "me", {"jobs": ">"}, count=count)
        (_, entries) = found[0]
        assert len(entries) == count
        ids = [entry[0] for entry in entries]
        pipe = self.client.pipeline(transaction=True)
        pipe.xack("jobs", "workers", *ids)
        pipe.xdel("jobs", *ids)
        pipe.execute()

    def close(self) -> None:
        self.client.close()
        self._server.terminate()
        self._server.wait(30)


class Postgres(Contestant):
    name = "PostgreSQL, SKIP LOCKED"
    embedded = False
    many = True

    def __init__(self, folder: Path) -> None:
        import psycopg

        binaries = _postgres_binaries()
        self._as = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
        self._home = folder / "postgres"
        self._home.mkdir()
        if self._as:
            shutil.chown(self._home, "postgres")
            for parent in (folder, *folder.parents):
                if not parent.stat().st_mode & 0o001:
                    parent.chmod(parent.stat().st_mode | 0o011)
        data = self._home / "data"
        self._run(binaries / "initdb", "-D", data, "-A", "trust", "-U", "bench")
        self._control = binaries / "pg_ctl"
        settings = (
            f"-c listen_addresses='' -c unix_socket_directories={self._home} -c fsync=on -c synchronous_commit=on"
        )
        self._run(self._control, "-D", data, "-w", "-l", self._home / "log", "-o", settings, "start")
        self.connection = psycopg.connect(f"host={self._home} user=bench dbname=postgres", autocommit=True)
        self.version = str(self.connection.info.server_version // 10000)
        self.connection.execute("CREATE TABLE jobs(id bigserial PRIMARY KEY, payload text)")

    def _run(self, *command: object) -> None:
        subprocess.run([*self._as, *map(str, command)], check=True, stdout=subprocess.DEVNULL, cwd="/")

    def push(self, payload: str) -> None:
        self.connection.execute("INSERT INTO jobs(payload) VALUES (%s)", (payload,))

    def take_ack(self) -> None:
        self.take_ack_many(1)

    def push_many(self, payloads: list[str]) -> None:
        with self.connection.transaction():
            self.connection.execute("INSERT INTO jobs(payload) SELECT unnest(%s::text[])", (payloads,))

    def take_ack_many(self, count: int) -> None:
        """The row lock is the lease: taking and settling are one transaction, and one fsync."""
        with self.connection.transaction():
            rows = self.connection.execute(
                "SELECT id, payload FROM jobs ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED", (count,)
            ).fetchall()
            assert len(rows) == count
            self.connection.execute("DELETE FROM jobs WHERE id = ANY(%s)", ([row[0] for row in rows],))

    def close(self) -> None:
        self.connection.close()
        self._run(self._control, "-D", self._home / "data", "-m", "immediate", "stop")


def _postgres_binaries() -> Path:
    for folder in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True):
        if (folder / "initdb").exists():
            return folder
    found = shutil.which("initdb")
    if found is None:
        raise ImportError("PostgreSQL is not on this machine")
    return Path(found).resolve().parent


def line_up(folder: Path) -> tuple[list[Contestant], list[str]]:
    """Everybody who is there, and who is not and why."""
    makers = [
        ("penstock", lambda: Penstock(folder)),
        ("persist-queue", lambda: PersistQueue(folder)),
        ("litequeue", lambda: LiteQueue(folder)),
        ("localqueue", lambda: LocalQueue(folder)),
        ("huey (SqliteStorage)", lambda: Huey(folder)),
        ("Redis Streams, appendfsync always", lambda: RedisStreams(folder, "always")),
        ("Redis Streams, appendfsync everysec", lambda: RedisStreams(folder, "everysec")),
        ("PostgreSQL, SKIP LOCKED", lambda: Postgres(folder)),
    ]
    present: list[Contestant] = []
    absent: list[str] = []
    for name, make in makers:
        try:
            present.append(make())
        except (ImportError, OSError, subprocess.CalledProcessError) as error:
            absent.append(f"{name}: not there ({error})")
            sys.stderr.write(f"{name}: not there ({error})\n")
    return present, absent
