"""Every limit and default, in one place; the reference page of the docs is made from this module.

Sizes are bytes, times are seconds, unless the name says otherwise.
"""

from __future__ import annotations

from typing import Final

# ── names and events ─────────────────────────────────────────────────────────────────────────────────────────────────
MAX_NAME_LENGTH: Final = 255
"""Characters in a topic's or queue's name."""
MAX_KIND_LENGTH: Final = 255
"""Characters in an event's kind."""
MAX_KEY_BYTES: Final = 400
"""UTF-8 bytes in an event's key, scope or dedup key, and in a consumer's or group's name."""
MAX_HEADERS: Final = 256
"""Headers on one event."""
MAX_HEADER_BYTES: Final = 64 << 10
"""UTF-8 bytes of all header names and values of one event."""
MAX_POSITION: Final = (1 << 63) - 1
"""The highest position a topic could reach."""
MAX_PAYLOAD_BYTES: Final = 256 << 20
"""One encoded payload."""
MAX_BATCH_BYTES: Final = 1 << 30
"""All payloads of one atomic batch."""

# ── opening ──────────────────────────────────────────────────────────────────────────────────────────────────────────
DEFAULT_URL: Final = "penstock.db"
"""What `penstock.open()` opens when neither an argument nor PENSTOCK_URL says otherwise."""
WRITER_CAPACITY: Final = 4096
"""Submissions that may wait for the writer before `submit` blocks."""
WRITER_PRESSURE: Final = 0.75
"""The share of the capacity above which `try_submit` refuses."""
BACKPRESSURE_RETRY: Final = 0.01
"""What `Backpressure.retry_after` suggests."""

# ── storage ──────────────────────────────────────────────────────────────────────────────────────────────────────────
GROUP_BYTES: Final = 16 << 20
"""Payload bytes after which a group commit stops taking more submissions."""
GROUP_SUBMISSIONS: Final = 4096
"""Submissions after which a group commit stops taking more."""
BLOCK_BYTES: Final = 256 << 10
"""What merging aims at, and where a large batch is cut into several blocks."""
BLOCK_EVENTS: Final = 65_536
"""The most events in one block."""
SETTLED_BYTES: Final = 64 << 10
"""A block of at least this size is never merged again."""
MERGE_FAN_IN: Final = 64
"""How many small neighbouring blocks make a merge worth its writes."""
SMALL_BYTES: Final = 6 << 10
"""The first merging tier: blocks below this size are merged among themselves before they meet larger ones."""

# ── topics ───────────────────────────────────────────────────────────────────────────────────────────────────────────
TOPIC_DEDUP_WINDOW: Final = 7 * 24 * 3600.0
"""How long a topic remembers a dedup key, unless its settings say otherwise."""
SUBSCRIPTION_BUFFER: Final = 128
"""Events a subscriber may be behind before on_lag="raise" or "drop" apply; also its read-ahead."""
WORKER_BATCH: Final = 64
WORKER_IDLE: Final = 0.01
WORKER_RESTARTS: Final = 1
ARROW_BATCH_ROWS: Final = 65_536
"""Rows in a record batch handed out by `read_arrow`, at the most."""
POLL_INTERVAL: Final = 0.003
"""How often a waiting process looks for what other processes committed."""
