"""The type of a field that holds a duration."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

Seconds = Annotated[
    float,
    Meta(extra={"duration": True}, extra_json_schema={"type": ["number", "string"], "examples": [90, "1h30m"]}),
]
"""A parsed duration: the type of fields in values, stores and requests.

The JSON of a request may hold a duration as text; see `Operation.body_decoder`.
"""
