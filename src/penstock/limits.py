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
MAX_TAGS: Final = 64
"""Tags on one event."""
MAX_POSITION: Final = (1 << 63) - 1
"""The highest position a topic could reach."""
MAX_PAYLOAD_BYTES: Final = 256 << 20
"""The largest encoded payload."""
MAX_BATCH_BYTES: Final = 1 << 30
"""All payloads of one atomic batch."""

RESULT_TTL: Final = 3600.0
"""The seconds that outcomes of messages pushed with `reply=True` are kept, unless the settings of the topic
`<queue>.results` say otherwise."""

# ── opening ──────────────────────────────────────────────────────────────────────────────────────────────────────────
DEFAULT_URL: Final = "penstock.db"
"""The journal that `penstock.open()` opens when neither an argument nor PENSTOCK_URL names a journal."""
WRITER_CAPACITY: Final = 4096
"""Submissions that may wait for the writer before `submit` blocks."""
WRITER_PRESSURE: Final = 0.75
"""The share of the capacity above which `try_submit` refuses."""
BACKPRESSURE_RETRY: Final = 0.01
"""The value of `Backpressure.retry_after`."""

# ── object storage ───────────────────────────────────────────────────────────────────────────────────────────────────
STORE_TIMEOUT: Final = 30.0
"""The seconds that an operation on a journal in an object store waits for the store before it raises an error."""
SERVER_TIMEOUT: Final = 60.0
"""The seconds that an operation on a served journal waits for the server before it raises an error."""
TIMEOUT_SECONDS_LEAST: Final = 0.01
"""The shortest `timeout` of a journal in an object store or at a server."""
STORE_CONNECT_SECONDS: Final = 5.0
"""The seconds for which opening a journal in an object store asks again at an address where no server answers."""
LEASE_SECONDS: Final = 5.0
"""After how long without a renewal another process may take a journal in an object store over from its writer."""
LEASE_SECONDS_LEAST: Final = 0.2
"""The shortest lease: below it, a pause of the interpreter would end a healthy writer."""
RELAXED_SECONDS: Final = 1.0
"""After how long a commit that no caller waits for is put into the object store, when no other one takes it along."""
TABLE_COMMITS: Final = 48
"""Commits after which a log in an object store becomes a table, so that opening replays fewer objects."""
TABLE_SECONDS: Final = 1.0
"""The least time between two such tables: a store that takes more commits in it also replays them faster."""
TABLE_LEASES: Final = 60
"""The age in leases at which collection may remove an object, with a minimum of ten minutes."""
OBJECT_CACHE_BYTES: Final = 64 << 20
"""Memory for blocks of tables that were read from an object store."""
OBJECT_MEMTABLE_BYTES: Final = 32 << 20
"""Bytes of newest rows kept in memory before they become a table in the object store."""
FOLLOW_SECONDS: Final = 0.4
"""The pause between two looks of a reader at the log while something happens. The pause grows to the next limit."""
FOLLOW_IDLE_SECONDS: Final = 0.7
"""The longest pause of a reader."""
FOLLOW_STALE_SECONDS: Final = 2.0
"""The age up to which a reader's state may be used while another thread looks for a newer state."""
SPARK_HOLD_SECONDS: Final = 3600.0
"""For how long a Spark task's tables in an object store are kept from collection: more than a task should take."""
FOLLOW_BYTES: Final = 16 << 20
"""Bytes of the log's newest rows a reader keeps over its tables before it opens newer tables."""

# ── storage ──────────────────────────────────────────────────────────────────────────────────────────────────────────
GROUP_BYTES: Final = 16 << 20
"""Payload bytes after which a group commit stops taking more submissions."""
GROUP_SUBMISSIONS: Final = 4096
"""Submissions after which a group commit stops taking more."""
BLOCK_BYTES: Final = 256 << 10
"""The size that merging aims at, and at which a large batch is cut into several blocks."""
BLOCK_EVENTS: Final = 65_536
"""The most events in one block."""
MERGED_BYTES: Final = 64 << 10
"""A block of at least this size is never merged again."""
COMPRESSED_BYTES: Final = 128
"""The size from which on a column of a large or a merged block is compressed."""
INLINE_BYTES: Final = 4 << 20
"""Up to this size a batch of blocks is appended in one commit; a larger one is staged first, in steps."""
STEP_BYTES: Final = 1 << 20
"""Payload bytes of one such step: what all other callers wait behind."""
SEGMENT_BYTES: Final = 8 << 20
"""From so many bytes of payloads on, a Spark task writes a file that becomes events, where the topic has a lake."""
BACKFILL_EVENTS: Final = 500_000
"""From so many sealed events on that a flow of a pipeline has still to read, Spark reads the files."""
BACKFILL_FILE_EVENTS: Final = 50_000
"""The events that these files have at least, on average: for smaller files the source is faster."""
BACKFILL_FILES: Final = 256
"""The most files in a batch of such a stream: each is a part of the batch's plan."""
STAGED_SECONDS: Final = 7 * 24 * 3600.0
"""After this time a batch that was staged and never published is removed."""
MERGE_FAN_IN: Final = 64
"""The number of small neighbouring blocks that makes a merge worth its writes."""
SMALL_BYTES: Final = 6 << 10
"""The first merging tier: blocks below this size are merged among themselves before they meet larger ones."""
SUMMARY_EVENTS: Final = 128
"""Events of one block from which on the store also says what they are like, so that reads can skip them."""
SUMMARY_VALUES: Final = 32
"""Kinds, or scopes, that it names; of a range that has more it says none."""
SUMMARY_RANGES: Final = 64
"""Ranges of which one row says so, once housekeeping has put them together."""
MAX_PARTITION_VALUES: Final = 200
"""Values of the column that parts sealed files, in one range of positions: each is a file that is written at once."""

# ── the index of entities ────────────────────────────────────────────────────────────────────────────────────────────
INDEX_RUN_BYTES: Final = 4 << 20
"""The bytes of a topic's newest events that are indexed in memory only. Above this size they become a run on disk."""
INDEX_RUN_EVENTS: Final = 16_384
"""The newest events of a topic that are indexed in memory only."""
INDEX_FAN_IN: Final = 8
"""The number of runs of a level that are merged into a run of the next level."""
INDEX_CALM_SECONDS: Final = 2.0
"""The seconds without commits after which the runs of topics are merged further than look-ups need."""
INDEX_CHUNK_BYTES: Final = 16 << 10
"""The size of a chunk of a run: several small entities, or a part of a large entity."""
INDEX_LARGE_CHUNK_BYTES: Final = 64 << 10
"""The chunks of an entity that is larger than one."""
INDEX_STEP_BYTES: Final = 1 << 20
"""The bytes that a commit of an index build writes, so that no caller waits long for the writer."""
INDEX_FILTER_TERMS: Final = 262_144
"""Runs with more entities than this have no filter: they are large, and most look-ups find something there."""
INDEX_WAITING_EVENTS: Final = 250_000
"""Events of one topic that may be in no run before a batch waits a moment for the indexer."""
UNFOLDED_TOPICS: Final = 64
"""Topics that a look for causes or correlations asks because what they name is not noted yet (`journal.locating`)."""
INDEX_MEMORY_BYTES: Final = 64 << 20
"""The most bytes of one topic's newest events kept in memory for look-ups by key, when building runs is behind."""

# ── topics ───────────────────────────────────────────────────────────────────────────────────────────────────────────
TOPIC_DEDUP_WINDOW: Final = 7 * 24 * 3600.0
"""The seconds that a topic remembers a dedup key, unless its settings say otherwise."""
SUBSCRIPTION_BUFFER: Final = 128
"""Events a subscriber may be behind before on_lag="raise" or "drop" apply; also its read-ahead."""
RETENTION_SECONDS: Final = 30.0
"""The seconds between two checks of topics with a max_age, also when no event is appended. Readers never see an older
event."""
RETENTION_BLOCKS: Final = 32
"""Blocks that one commit of housekeeping removes at the most, so that no caller waits long behind it."""
RETENTION_BYTES: Final = 1 << 20
"""The approximate bytes that a step of retention removes."""
EXCHANGE_BYTES: Final = 512 << 10
"""About how many bytes of blocks one commit of housekeeping replaces by what is left of them."""
RECLAIM_SHARE: Final = 8
"""`maintain` gives freed space back when it is at least this part (an eighth) of the store."""
RECLAIM_BYTES: Final = 1 << 20
"""The size from which on a store is worth that."""
WORKER_BATCH: Final = 64
"""Events a worker hands to its handler at once, at the most."""
WORKER_IDLE: Final = 0.01
"""The seconds after which a worker looks for messages without a signal."""
WORKER_RESTARTS: Final = 5
"""The restarts within a minute after which a worker with a failing handler gives up."""
WORKER_RESTART_SECONDS: Final = 60.0
"""After how long a failure no longer counts against a worker's restarts."""
WORKER_RESTART_PAUSE: Final = 0.1
"""The seconds that a worker waits before it restarts. Each further failure within the minute doubles the pause."""
ARROW_BATCH_ROWS: Final = 65_536
"""Rows in a record batch handed out by `read_arrow`, at the most."""
POLL_FIRST: Final = 0.001
"""The seconds after which a waiting process looks again, once it noticed that another process wrote. The pauses grow to
the next two limits."""
POLL_IDLE: Final = 0.05
"""The longest pause where the kernel tells of writes (inotify)."""
POLL_BLIND: Final = 0.01
"""The longest pause where it does not."""

# ── queues ───────────────────────────────────────────────────────────────────────────────────────────────────────────
WORKER_RETRY_FIRST: Final = 5.0
"""The seconds that a message waits after its first failure in a worker, unless the queue's policy has a `retry`."""
WORKER_RETRY_FACTOR: Final = 6.0
"""The factor by which every further failure lengthens the wait: 5 s, 30 s, 3 min, …"""
WORKER_RETRY_LONGEST: Final = 600.0
"""The longest wait of a message after failures in a worker."""
WORKER_RETRY_JITTER: Final = 0.2
"""The share of it that is taken off at random, so that messages that failed together do not come back together."""
UNKNOWN_TASK_PAUSE: Final = 1.0
"""The seconds that a new message waits when its worker has no task of its name."""
UNKNOWN_TASK_LONGEST: Final = 300.0
"""The longest such wait: a tenth of the message's age, up to this."""
TASK_KILL_SECONDS: Final = 5.0
"""The seconds after a task's time limit in which its call is to end, when a worker runs in several processes. A process
whose call keeps Python from running is killed then. A cancelled coroutine has half as long, in every worker."""
MAX_ERROR_BYTES: Final = 4 << 10
"""UTF-8 bytes of an error's text that a message keeps; longer ones lose their middle."""
MAX_TRACEBACK_BYTES: Final = 8 << 10
"""The bytes of a failed message's traceback that are kept."""
ATTEMPTS_KEPT: Final = 10
"""Failed attempts that are kept of a message, the newest."""
MAX_ATTEMPT_ERROR_BYTES: Final = 512
"""UTF-8 bytes of the error that each of them keeps."""

# ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────────────
MESSAGES_LISTED: Final = 100
"""Messages that `queue.messages()` lists, unless told otherwise."""
UNATTENDED_SECONDS: Final = 60.0
"""The age of a ready message, and the silence of consumers, after which no consumer processes a queue. The queue's
`warn_after` takes the place of the age."""
BACKLOG_SECONDS: Final = 600.0
"""The age of the oldest ready message above which health warns of a backlog, unless the queue's `warn_after` says
otherwise."""
FAILING_ATTEMPTS: Final = 10
"""Attempts of a queue's messages that fail in a row, without a success, above which health warns."""
WRITER_FULL: Final = 0.75
"""The share of the writer's capacity that waits, above which health warns."""

# ── the console's charts ─────────────────────────────────────────────────────────────────────────────────────────────
HISTORY_ROW_BYTES: Final = 2048
"""A row of the past in numbers; 804 of them are kept. Series that do not fit, the calmest, are left out of it."""

# ── buffers ──────────────────────────────────────────────────────────────────────────────────────────────────────────
BUFFER_MANIFEST: Final = "ingest/manifest"
"""The path of a buffer's manifest in its store."""
BUFFER_PREFIX: Final = "ingest"
"""The prefix of a buffer's batches in its store."""
