"""A relay: it moves the rows of an outbox into a journal, each once, and deletes the rows.

The journal has one event about each outbox, with the rows of its newest batch. This event is appended in the commit of
the batch. A relay first deletes these rows. Then it reads rows. Then it commits the next batch if that event is still
the newest.

    rows of batch n deleted  →  rows read  →  batch n+1 in the journal, and the list of its rows  →  rows deleted  …

So whenever rows are read, all rows in the journal have been deleted. If two relays read the same rows, the second relay
finds another list in the journal and commits nothing. The numbers of rows are never compared.
"""

from __future__ import annotations

import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import groupby
from typing import Any, Final, Self

from penstock import errors, pipelines
from penstock.core.clock import Duration, seconds
from penstock.core.events import Event
from penstock.core.names import check_consumer, check_function, check_whole, shown_url
from penstock.core.observe.logs import Log
from penstock.core.surface.journal import Journal
from penstock.integrations.outbox.connections import connector, run, run_each
from penstock.integrations.outbox.rows import APPEND, SELF, OutboxLag, OutboxRow, lag
from penstock.integrations.outbox.schema import TABLE, check_table

TOPIC: Final = "penstock.outbox"
"""The topic with an event about each outbox. The event lists the rows of the outbox's newest batch."""
RELAYED: Final = "outbox.relayed"
PIPELINE: Final = "outbox"
"""The pipeline under which relays report."""
BATCH: Final = 500
MOST: Final = 10_000
POLL: Final = 0.2
PAUSE: Final = 5.0
"""The maximum number of seconds until a failed relay tries again."""
TOKEN_BYTES: Final = 16
REPORT_EVERY: Final = 2.0

SELECT = "SELECT token, act, name, body FROM {table} WHERE token <> :self AND error IS NULL{besides} ORDER BY id"
DELETE = "DELETE FROM {table} WHERE token = :token"
REFUSE = "UPDATE {table} SET error = :error WHERE token = :token"
IDENTITY = "SELECT body FROM {table} WHERE token = :self"
NAME_IT = "INSERT INTO {table} (token, made_ms, act, name, body) VALUES (:self, 0, :self, :self, :body)"

log = Log("penstock.outbox")


class _Outrun(Exception):
    """The error that is raised when another relay has committed a batch meanwhile."""


class Relay:
    """Moves the rows of an outbox into a journal of this process. Several relays of one outbox may run at once.

        with Relay(journal, "postgresql://shop@db/shop"):
            ...                                            # it runs in a thread

    `connect` is the url of the database, or a function that returns a connection of a DB-API driver, SQLAlchemy or
    Django. Only the relay uses that connection. `run_once` moves one batch in the calling thread. `run` continues until
    `stop` is called.

    A row that the journal refuses stays in the table, with the reason in its column `error`. It does not delay other
    rows. Rows for a queue that is full or does not exist yet wait. The relay reports as a flow of the pipeline
    "outbox": its lag is the number of waiting rows.
    """

    def __init__(
        self,
        journal: Journal,
        connect: str | Callable[[], Any],
        *,
        table: str = TABLE,
        name: str = "relay",
        batch: int = BATCH,
        poll: Duration = POLL,
    ) -> None:
        journal.transaction()  # raises ConfigError for a served journal
        self.journal = journal
        self.moved = 0
        """The number of rows that this object has moved."""
        self._connect = connector(connect) if isinstance(connect, str) else check_function(connect, "connect")
        self._name = check_consumer(name, "relay")
        self._batch = min(check_whole(batch, "batch"), MOST)
        self._poll = seconds(poll, "poll")
        self._table = check_table(table)
        self._connection: Any = None
        self._identity = ""
        self._seq = -1
        """The position of the newest event about the outbox whose rows are known to be deleted."""
        self._waiting_for: set[str] = set()
        """Queues and topics that accept nothing now."""
        self._told: set[str] = set()
        """The queues and topics among them that the log mentions."""
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._report = _Report(journal, self._name, shown_url(connect) if isinstance(connect, str) else table)

    # ── moving ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def run_once(self) -> int:
        """Moves a batch of the waiting rows and returns the number of moved rows."""
        before = self.moved
        self._check_idle()
        with suppress(_Outrun):
            self._move_batch()
        return self.moved - before

    def drain(self) -> int:
        """Moves all rows that the journal accepts now and returns the number of moved rows."""
        before, more = self.moved, True
        self._check_idle()
        while more:
            try:
                more = self._move_batch()
            except _Outrun:
                time.sleep(self._poll)
        return self.moved - before

    def _check_idle(self) -> None:
        if self._thread is not None:
            raise errors.ConfigError("this relay runs in its thread: stop it, or make another one")

    def _move_batch(self) -> bool:
        """Moves a batch. Returns True when there may be more rows to move, False when every row had its turn."""
        if self._connection is None:
            self._connection = self._connect()
        self._identity = self._identity or self._find_identity()
        newest = next(self.journal.topic(TOPIC).read(key=self._identity, reverse=True, limit=1), None)
        if newest is None:
            self._seq = 0
        elif newest.seq != self._seq:
            self._delete(newest.seq, _tokens_in(newest))
        names = {f"queue{number}": name for number, name in enumerate(self._waiting_for)}
        besides = f" AND name NOT IN ({', '.join(f':{key}' for key in names)})" if names else ""
        found = self._run(f"{SELECT} LIMIT {self._batch}", besides=besides, **names)
        self._commit()
        if not found:
            self._waiting_for.clear()  # every other row had its turn: try these queues again
            return False
        self._move([OutboxRow(*one) for one in found])
        return True

    def _move(self, rows: Sequence[OutboxRow]) -> None:
        """Moves rows in one batch.

        If the journal refuses the batch, the rows are moved in halves, until a refused row is alone.
        """
        try:
            seq = self._append(rows)
        except (errors.Closed, errors.StorageError, errors.Corrupt, errors.ReadOnly, errors.Locked):
            raise  # no row caused it
        except errors.PenstockError as error:
            if len(rows) == 1:
                self._leave(rows[0], error)
                return
            half = len(rows) // 2
            self._move(rows[:half])
            self._move(rows[half:])
        else:
            self._delete(seq, [row.token for row in rows])
            self.moved += len(rows)

    def _append(self, rows: Sequence[OutboxRow]) -> int:
        """Appends rows and their list, and returns the list's position."""
        read = [(row.act, row.name, *row.read()) for row in rows]
        with self.journal.transaction() as tx:
            newest = next(tx.read(TOPIC, key=self._identity, reverse=True, limit=1), None)
            if (newest.seq if newest else 0) != self._seq:
                raise _Outrun
            for (act, name, options), run_of in groupby(read, lambda one: (one[0], one[1], one[3])):
                drafts = [draft for _, _, some, _ in run_of for draft in some]
                if act == APPEND:
                    tx.append_many(name, drafts)
                else:
                    tx.push_many(name, drafts, **options)
            tokens = b"".join(bytes.fromhex(row.token) for row in rows)
            return tx.append(TOPIC, RELAYED, tokens, key=self._identity).seq

    def _leave(self, row: OutboxRow, error: errors.PenstockError) -> None:
        """Leaves a row in the table: for a later try when its queue is full or missing, otherwise for a person."""
        if isinstance(error, errors.QueueFull | errors.UnknownQueue | errors.FenceActive | errors.Backpressure):
            if row.name not in self._told:
                log.warning("outbox %s: rows for %r wait: %s", self._name, row.name, error)
            self._told.add(row.name)
            self._waiting_for.add(row.name)
            return
        log.error("outbox %s: a row for %r was refused: %s", self._name, row.name, error)
        self._run(REFUSE, error=f"{type(error).__name__}: {error}", token=row.token)
        self._commit()

    def _delete(self, seq: int, tokens: Sequence[str]) -> None:
        """Deletes the rows that the event at a position lists.

        Each row is deleted by its own statement. For a list of tokens, MySQL reads the whole table and waits for the
        rows of open transactions.
        """
        if tokens:
            run_each(self._connection, DELETE.format(table=self._table), [{"token": token} for token in tokens])
            self._commit()
        self._seq = seq

    def _find_identity(self) -> str:
        """Returns the outbox's own name, which its table stores. The first relay creates the name."""
        topic = self.journal.topic(TOPIC)
        if not topic.settings.by_key:
            topic.configure(by_key=True)
        if not self._run(IDENTITY):
            try:
                self._run(NAME_IT, body=uuid.uuid4().hex)
            except Exception as error:  # another relay was faster: its row is read below
                log.debug("outbox %s: %s", self._name, error)
                self._disconnect()
                self._connection = self._connect()
            else:
                self._commit()
        ((identity,),) = self._run(IDENTITY)
        self._commit()
        return str(identity)

    def _run(self, statement: str, *, besides: str = "", **values: object) -> Sequence[Sequence[Any]]:
        text = statement.format(table=self._table, besides=besides)
        return run(self._connection, text, {"self": SELF, **values})

    def _commit(self) -> None:
        self._connection.commit()

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):
                connection.close()

    # ── running ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def run(self) -> None:
        """Moves rows until `stop` is called or the journal is closed. Errors are logged, and the relay tries again."""
        failures = 0
        try:
            while not self._stopping.is_set():
                try:
                    try:
                        pause = 0.0 if self._move_batch() else self._poll
                    except _Outrun:
                        pause = self._poll
                    failures = 0
                    self._report.say("running", self.moved, lambda: lag(self._connection, table=self._table))
                except errors.Closed:
                    return
                except Exception as error:
                    failures += 1
                    pause = min(PAUSE, self._poll * 2**failures)
                    log.warning("outbox %s: %s: %s; again in %.1f s", self._name, type(error).__name__, error, pause)
                    self._disconnect()
                    self._report.say("waiting", self.moved, error=f"{type(error).__name__}: {error}")
                self._stopping.wait(pause)
        finally:
            with suppress(errors.PenstockError):
                self._report.say("stopped", self.moved)
            self._disconnect()

    def start(self) -> Self:
        """Runs the relay in a thread."""
        if self._thread is None:
            self._disconnect()  # some drivers' connections belong to a thread
            self._stopping.clear()
            self._thread = threading.Thread(target=self.run, name=f"penstock outbox {self._name}", daemon=True)
            self._thread.start()
        return self

    def stop(self) -> None:
        """Ends `run` after the current batch, waits for the thread, and closes the relay's connection."""
        self._stopping.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        self._disconnect()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()


class _Report:
    """The report of a relay, as a flow of the pipeline "outbox", from time to time."""

    def __init__(self, journal: Journal, name: str, source: str) -> None:
        self._topic = journal.topic(pipelines.TOPIC)
        self._journal = journal
        self._status = pipelines.FlowStatus(
            pipeline=PIPELINE,
            flow=name,
            state="pending",
            sources=[source],
            pid=os.getpid(),
            host=socket.gethostname(),
            started_at=datetime.now(UTC),
        )
        self._last = -pipelines.HEARTBEAT

    def say(
        self, state: pipelines.State, moved: int, look: Callable[[], OutboxLag] | None = None, error: str | None = None
    ) -> None:
        """Reports when something has changed, and from time to time. `look` counts the waiting rows."""
        status, passed = self._status, time.monotonic() - self._last
        same = status.state == state and (look is not None or status.error == error)
        if same and passed < (REPORT_EVERY if moved != status.rows or status.lag else pipelines.HEARTBEAT):
            return
        status.rows_per_second = (moved - status.rows) / passed if same and passed else None
        status.state, status.rows, status.rows_out, status.error = state, moved, moved, error
        if look is not None:
            waiting = look()
            status.lag = waiting.waiting
            if waiting.refused:
                status.error = f"{waiting.refused} rows were refused: their column `error` says why"
        if not self._topic.latest:
            self._topic.configure(by_key=True, indexed=False)
        pipelines.report(self._journal, [status])
        self._last = time.monotonic()


def _tokens_in(event: Event[bytes]) -> list[str]:
    packed = event.payload
    return [packed[at : at + TOKEN_BYTES].hex() for at in range(0, len(packed), TOKEN_BYTES)]
