"""Integrations that let other libraries keep their data in a journal. Each module uses only public names of penstock.

    celery          a transport of kombu, and a result backend
    django          a backend for Django's tasks
    eventsourcing   a persistence module for eventsourcing
    langgraph       a checkpointer for LangGraph
    opening         one open journal for a process
    mcp             an event store for MCP servers
    outbox          rows of a program's own database, on their way into a journal (penstock.outbox)

Each module with a library's name has an extra of the same name, which installs the library.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.errors import ConfigError


@contextmanager
def needed_for(extra: str) -> Iterator[None]:
    """Wraps imports that need an extra. Raises ConfigError, which names the extra, when a package is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ConfigError(f'{error.name} is not installed: pip install "penstock[{extra}]"') from error
