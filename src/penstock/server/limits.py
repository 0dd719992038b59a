"""The limits on sizes, durations and numbers: what one request may use, and what the server holds for all requests."""

from __future__ import annotations

from typing import Final

import msgspec

LONGEST_WAIT: Final = 60.0
"""The maximum number of seconds that a `take` waits for a message. A longer wait is cut to this number."""
MOST_EVENTS: Final = 10_000
"""The maximum number of events on one page of a read."""
AT_ONCE_BYTES: Final = 256 << 10
"""The maximum size of a body that the event loop decodes itself, in bytes. A thread decodes larger bodies."""
CHECKING: Final = 16
"""The number of threads for commits that pass through a program's own checks."""
STREAM_EVENTS: Final = 2_000
"""The number of events that a stream reads at a time. Between two reads it keeps nothing of the store open."""
STREAM_BYTES: Final = 1 << 20
"""The number of payload bytes after which such a read ends early."""
STREAM_ROWS: Final = 65_536
"""The number of rows of a record batch in an Arrow stream."""
ARROW_BYTES: Final = 8 << 20
"""The bytes of record batches that an Arrow stream reads at a time."""
BLOCKS_BYTES: Final = 4 << 20
"""The bytes of stored blocks after which an answer ends. The reader then asks again."""
SEND_BYTES: Final = 64 << 10
"""The bytes that a connection gets at a time.

A slow reader's connection holds these bytes in addition to shared data.
"""
LARGE_BLOCK: Final = 2 << 20
"""The size from which a freed block of memory goes back to the system, in bytes, under `penstock serve` on glibc."""
HEAPS: Final = 2
"""The number of `malloc` heaps that the threads of such a server share."""
PING_SECONDS: Final = 15.0
"""The longest time without data on a live stream. After it, the stream sends a sign of life."""
LIVE_BUFFER: Final = 4096
"""The number of a topic's events in memory for its listeners. A listener further behind reads the log."""
LIVE_BYTES: Final = 32 << 20
"""The bytes of such events, over all topics."""


class Limits(msgspec.Struct, frozen=True):
    """The limits of a server. Pass them to `app(limits=…)`."""

    max_body: int = 32 << 20
    """The maximum size of a request's body, in bytes."""
    max_held: int = 256 << 20
    """The bytes of arriving bodies and of answers on their way, over all requests.

    Above this number the answer is 503.
    """
    max_staged: int = 16 << 30
    """The bytes that one token may have staged and not yet committed."""
    body_timeout: float = 30.0
    """The number of seconds in which a request's body must arrive."""
    header_timeout: float = 30.0
    """The number of seconds in which a connection's first request, and the rest of a request that has begun, must
    arrive.
    """
    write_timeout: float = 30.0
    """The number of seconds that a write waits for the writer. Then the answer is 503 with Retry-After."""
    max_listeners: int = 2_000
    """The maximum number of open live streams."""
    max_waiting: int = 2_000
    """The maximum number of requests that wait for a message."""
    max_connections: int = 5_000
    """The maximum number of open connections. New connections above it are answered with 503."""
    wrong_tokens: int = 10
    """The number of different wrong tokens that an address may send in a minute, to the page or the API.

    Then the address must wait.
    """
