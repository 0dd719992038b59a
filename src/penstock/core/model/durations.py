"""The type of a field that holds a duration."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

Seconds = Annotated[
    float,
    Meta(extra={"duration": True}, extra_json_schema={"type": ["number", "string"], "examples": [90, "1h30m"]}),
]
"""A duration that was read: the type of fields in values, stores and requests. A request's JSON may say it as text; see
`Operation.body_decoder`."""
