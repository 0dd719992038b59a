"""Rows of an outbox: a push or an append, checked when it is written, and encoded as in the protocol."""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Unpack

import msgspec
from msgspec.structs import replace

from penstock.core.clock import seconds
from penstock.core.documents.decoding import decoded
from penstock.core.documents.events import DraftDocument
from penstock.core.events import Draft
from penstock.core.journal.prepare import make_draft
from penstock.core.model.arguments import DraftArguments, PushArguments, show_arguments
from penstock.core.model.push import PushOptions
from penstock.core.names import check_name
from penstock.core.protocol.queues import PushRequest
from penstock.core.queue.operations.push import one_draft
from penstock.core.surface.queue import push_options
from penstock.errors import ConfigError
from penstock.integrations.outbox.connections import run
from penstock.integrations.outbox.schema import TABLE, check_table
from penstock.remote.events import draft_document
from penstock.remote.queues import push_request

INSERT: Final = "INSERT INTO {} (token, made_ms, act, name, body) VALUES (:token, :made_ms, :act, :name, :body)"
COUNT: Final = (
    "SELECT count(*), count(error), min(CASE WHEN error IS NULL THEN made_ms END) FROM {} WHERE token <> :self"
)
SELF: Final = "self"
"""The token of the row with the name of the outbox itself. No relay moves this row."""
APPEND, PUSH = "append", "push"
CONDITIONS: Final = ("expect", "unless", "after")
_TOKEN: Final = re.compile("[0-9a-f]{32}")
_encode = msgspec.json.Encoder().encode
_decode_draft = msgspec.json.Decoder(DraftDocument).decode
_decode_push = msgspec.json.Decoder(PushRequest).decode
_USUAL: Final = msgspec.structs.asdict(PushOptions())


@show_arguments(DraftArguments, Draft)
def append(
    connection: Any,
    topic: str,
    kind: object,
    payload: object = None,
    *,
    table: str = TABLE,
    **draft: Unpack[DraftArguments],
) -> None:
    """Appends an event if the connection's transaction commits. The arguments are those of `Topic.append`.

    The event occurred now, unless `occurred_at` says otherwise. `expect` and `unless` are refused: they would be
    compared when the event enters the journal, which is after your transaction.
    """
    for name in ("expect", "unless"):
        if draft.get(name) is not None:
            raise ConfigError(
                f"{name}= cannot be compared in another database's transaction: leave it out of an outbox"
            )
    made = make_draft(kind, payload, draft)
    if made.occurred_at is None:
        made.occurred_at = datetime.now(UTC)
    _write(connection, table, APPEND, check_name(topic), draft_document(made, topic))


@show_arguments(PushArguments, PushOptions)
def push(connection: Any, queue: str, payload: object, *, table: str = TABLE, **options: Unpack[PushArguments]) -> None:
    """Pushes a message if the connection's transaction commits. The options are those of `Queue.push`.

    A `delay` begins now, not when the message enters the journal.
    """
    check_name(queue, "queue")
    wanted, now = push_options(options), datetime.now(UTC)
    made = replace(one_draft(payload, wanted), occurred_at=now)
    request = push_request(queue, [made], wanted)
    assert request is not None
    if request.delay:
        request.not_before, request.delay = now + timedelta(seconds=seconds(wanted.delay, "delay")), 0
    _write(connection, table, PUSH, queue, request)


def _write(connection: Any, table: str, act: str, name: str, body: msgspec.Struct) -> None:
    now = round(datetime.now(UTC).timestamp() * 1000)
    row = {"token": uuid.uuid4().hex, "made_ms": now, "act": act, "name": name, "body": _encode(body).decode()}
    statement = INSERT.format(check_table(table))
    try:
        run(connection, statement, row)
    except ConfigError:
        raise
    except Exception as error:
        # Nothing is created and nothing is tried again here: the transaction is the caller's.
        error.add_note(f"outbox: the table {table} is made beforehand, by outbox.create(…), Alembic or a migration")
        raise


class OutboxRow(msgspec.Struct):
    """A row that waits for a relay."""

    token: str
    act: str
    name: str
    body: str

    def read(self) -> tuple[Sequence[Draft], dict[str, Any]]:
        """Returns the drafts of a row and their push options.

        Raises ConfigError when the row is of a newer version, or was not written by an outbox.
        """
        body, where = self.body.encode(), "the row's body"
        if not _TOKEN.fullmatch(self.token):
            raise ConfigError(f"a row's token is 32 hexadecimal digits, not {self.token!r:.80}")
        if self.act == APPEND:
            return [decoded(body, _decode_draft, DraftDocument, where).draft()], {}
        if self.act != PUSH:
            raise ConfigError(f"a row is an {APPEND} or a {PUSH}, not {self.act!r}")
        wanted = decoded(body, _decode_push, PushRequest, where)
        options = {name: value for name, usual in _USUAL.items() if (value := getattr(wanted, name)) != usual}
        return [one.draft() for one in wanted.messages or ()], options


class OutboxLag(msgspec.Struct, frozen=True):
    """The numbers of an outbox's rows that are not in the journal yet."""

    waiting: int
    """The number of rows that a relay will move."""
    refused: int
    """The number of rows that the journal refused. Their column `error` has the reason."""
    oldest_seconds: float
    """The age of the oldest waiting row in seconds; 0 when no row waits."""


def lag(connection: Any, *, table: str = TABLE) -> OutboxLag:
    """Counts the rows of an outbox that are not in the journal yet."""
    ((rows, refused, oldest),) = run(connection, COUNT.format(check_table(table)), {"self": SELF})
    age = 0.0 if oldest is None else max(0.0, datetime.now(UTC).timestamp() - oldest / 1000)
    return OutboxLag(rows - refused, refused, age)
