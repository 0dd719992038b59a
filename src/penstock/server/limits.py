"""How large, how long, how many: what one request may ask of a server."""

from __future__ import annotations

from typing import Final

import msgspec

LONGEST_WAIT: Final = 60.0
"""Seconds a `take` may wait for a message; longer waits are cut to it."""
MOST_EVENTS: Final = 10_000
"""Events in one page of a read."""
USUAL_EVENTS: Final = 1_000
"""Events in a page when the request names no number."""
MOST_TAKEN: Final = 10_000
"""Messages one take may ask for."""
PAGE_BYTES: Final = 32 << 20
"""Payload bytes after which a page of a read ends early."""
STREAM_EVENTS: Final = 2_000
"""Events a stream reads at a time; between readings it holds nothing of the store."""
STREAM_ROWS: Final = 65_536
"""Rows of a record batch in an Arrow stream."""
PING_SECONDS: Final = 15.0
"""A live stream with nothing to say says at least this often that it is there."""
LIVE_BUFFER: Final = 4096
"""Events of a topic kept in memory for its listeners; who is further behind reads the log."""


class Limits(msgspec.Struct, frozen=True):
    """What a server allows. Give one to `app(limits=…)`."""

    max_body: int = 32 << 20
    """Bytes of a request's body."""
    body_timeout: float = 30.0
    """Seconds for a request's body to arrive."""
    write_timeout: float = 30.0
    """Seconds a write waits for the writer before the answer is 503 with Retry-After."""
    max_listeners: int = 2_000
    """Live streams open at once."""
    max_waiting: int = 2_000
    """Requests waiting for a message at once."""
