"""The operations of the wire, each declared once.

An `Operation` has a name, a method, a path and query parameters. Its request and answer are msgspec structs. It names
its errors, its role and the status of its success. The server's routes, the OpenAPI document and the client are made
from these declarations: nothing about the wire is written down a second time.

    operation                 the class of a declaration
    topics, queues, bulk      the declarations, with their structs
    fields                    changes to stored values, as structs
    problems                  errors as problem+json, and back
    openapi                   all declarations, and the OpenAPI document made of them

`protocol.topics`, `protocol.queues` and `protocol.bulk` are imported on first use, because most programs need few of
their structs, or none.
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
