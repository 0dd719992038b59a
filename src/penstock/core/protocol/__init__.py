"""Every operation that crosses the wire, declared once.

An `Operation` has a name, a method and a path, query parameters, request and answer as msgspec structs, the errors it
may answer with, the role it needs and the status of its success. The server's routes, the OpenAPI document and the
client are made from the table: nothing about the wire is written down a second time.

    operation       what a declaration is
    journal, topics, queues, messages, deliveries, bulk      the declarations, with their structs
    table           all of them
    fields          changes to stored values, as structs
    problems        errors as problem+json, and back
    openapi         the table as an OpenAPI document

`protocol.topics`, `protocol.queues` and `protocol.bulk` are imported when they are first asked for: most programs ask
for few of their structs, or for none.
"""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.core.protocol import bulk, queues, topics

__all__ = ["bulk", "queues", "topics"]


def __getattr__(name: str) -> ModuleType:
    if name in __all__:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
