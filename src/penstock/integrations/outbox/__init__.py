"""Messages and events that commit with the rows of the program's own database and are then moved into a journal.

    outbox.push(connection, "emails", {"to": "ada@example.com"})     a row, in the transaction that is open
    Relay(journal, connect)                                          moves committed rows into the journal, each once

`rows` writes rows through connections of DB-API drivers, SQLAlchemy and Django. `schema` has the table for the rows.
`relay` moves rows. `django` is an app with a migration and a command.

Ids of rows are not assigned in the order of commits, so no position is remembered. Instead, rows that are in the
journal are deleted. The commit of a batch also stores the list of the batch's rows in the journal. These rows are
deleted before the next batch is read. So a relay may end at any point, and several relays may run at once.
"""

from penstock.integrations.outbox.relay import Relay
from penstock.integrations.outbox.rows import OutboxLag, append, lag, push
from penstock.integrations.outbox.schema import TABLE, create, ddl, table

__all__ = ["TABLE", "OutboxLag", "Relay", "append", "create", "ddl", "lag", "push", "table"]
