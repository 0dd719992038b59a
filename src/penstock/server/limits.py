"""The limits on sizes, durations and numbers: what one request may ask of a server, and what the server holds for all
of them."""

from __future__ import annotations

from typing import Final

import msgspec

LONGEST_WAIT: Final = 60.0
"""Seconds a `take` may wait for a message; longer waits are cut to it."""
MOST_EVENTS: Final = 10_000
"""Events in one page of a read."""
AT_ONCE_BYTES: Final = 256 << 10
"""Bytes of a body that the event loop decodes itself; a thread decodes larger ones."""
CHECKING: Final = 16
"""Threads for what a program's own checks see before it is committed."""
STREAM_EVENTS: Final = 2_000
"""Events a stream reads at a time; between readings it holds nothing of the store."""
STREAM_BYTES: Final = 1 << 20
"""Payload bytes after which such a reading ends early."""
STREAM_ROWS: Final = 65_536
"""Rows of a record batch in an Arrow stream."""
ARROW_BYTES: Final = 8 << 20
"""Bytes of record batches an Arrow stream reads at a time."""
BLOCKS_BYTES: Final = 4 << 20
"""Bytes of stored blocks after which an answer ends; the reader asks again."""
SEND_BYTES: Final = 64 << 10
"""Bytes handed to a connection at a time: what a slow reader's connection holds beside what is shared."""
LARGE_BLOCK: Final = 2 << 20
"""Bytes from which a block of memory goes back to the system when it is freed, under `penstock serve` on glibc."""
HEAPS: Final = 2
"""Heaps of `malloc` that the threads of such a server share."""
PING_SECONDS: Final = 15.0
"""A live stream with nothing to say says at least this often that it is there."""
LIVE_BUFFER: Final = 4096
"""Events of a topic kept in memory for its listeners; who is further behind reads the log."""
LIVE_BYTES: Final = 32 << 20
"""Bytes of such events, of all topics together."""


class Limits(msgspec.Struct, frozen=True):
    """The limits of a server. Give one to `app(limits=…)`."""

    max_body: int = 32 << 20
    """Bytes of a request's body."""
    max_held: int = 256 << 20
    """Bytes of bodies that arrive and answers that are sent, all requests together; above it the answer is 503."""
    max_staged: int = 16 << 30
    """Bytes that one token may have staged and not committed."""
    body_timeout: float = 30.0
    """Seconds for a request's body to arrive."""
    header_timeout: float = 30.0
    """Seconds for a connection's first request, and for the rest of a request that has begun, to arrive."""
    write_timeout: float = 30.0
    """Seconds a write waits for the writer before the answer is 503 with Retry-After."""
    max_listeners: int = 2_000
    """Live streams open at once."""
    max_waiting: int = 2_000
    """Requests waiting for a message at once."""
    max_connections: int = 5_000
    """Connections open at once; above it new ones are answered with 503."""
    wrong_tokens: int = 10
    """Different wrong tokens an address may send in a minute, to the page or the API, before it must wait."""
