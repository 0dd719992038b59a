"""Creates the table. It has no model: programs write it through penstock.outbox."""

from typing import Any

from django.db import migrations

from penstock.integrations.outbox.schema import TABLE, ddl


def make(apps: Any, editor: Any) -> None:
    """Creates the table in the database that is migrated."""
    editor.execute(ddl(editor.connection.vendor))


def drop(apps: Any, editor: Any) -> None:
    """Drops the table, with the rows that no relay has moved."""
    editor.execute(f"DROP TABLE {TABLE}")


class Migration(migrations.Migration):
    """The first state of the app."""

    initial = True
    dependencies: list[tuple[str, str]] = []
    operations = [migrations.RunPython(make, drop)]
