"""The faults: what each breaks, the text that it changes, and the tests that should find it.

A fault names no file. Its `old` text occurs exactly once below `src/penstock`, wherever that code lies; where a change
of the code removes the text, `test_planted.py` fails, and the fault is written anew for the code as it is then.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = Path("src") / "penstock"

AREAS = {
    "journal": ("contract/journal", "journal", "crash/journal", "model", "torture"),
    "index": ("journal", "contract/journal", "contract/entity", "model"),
    "sealing": ("contract/journal", "journal", "crash/journal", "torture/damage", "test_sql.py"),
    "engine": ("contract/engine", "crash/engine", "engine", "torture"),
    "queue": ("contract/queue", "model"),
    "entity": ("contract/entity", "test_merkle_tree.py", "model"),
    "server": ("server",),
    "buffer": ("buffer",),
    "spark": ("spark", "contract/journal"),
}
"""The folders below `tests` that are asked, one after the other, when none of a fault's own finders finds it."""


@dataclass(frozen=True)
class Fault:
    """One mistake: what is in the place of what, and which tests should notice."""

    name: str
    area: str
    says: str
    old: str
    new: str
    finders: tuple[str, ...]
    """Arguments of pytest below `tests`, the quickest first: "torture/test_power_cuts.py -k file"."""

    def places(self, root: Path) -> list[Path]:
        """The source files that hold the old text, as often as they hold it."""
        files = sorted((root / SOURCE).rglob("*.py"))
        return [path for path in files for _ in range(path.read_text("utf-8").count(self.old))]

    def place(self, root: Path) -> Path:
        """The one source file in which the fault is planted; LookupError when there is none, or more than one."""
        found = self.places(root)
        if len(found) != 1:
            where = ", ".join(str(path.relative_to(root)) for path in found) or "no file"
            raise LookupError(f"the fault {self.name!r} has {len(found)} places ({where}): write its old text anew")
        return found[0]

    def planted(self, source: str) -> str:
        """The text of its file with the fault in it."""
        return source.replace(self.old, self.new)


FAULTS = (
    # ── journal ──────────────────────────────────────────────────────────────────────────────────────────────────────
    Fault(
        "commit-without-sync",
        "journal",
        "an acknowledged append is not on disk",
        "self.engine.write(sync=not relaxed) as tx",
        "self.engine.write(sync=False) as tx",
        ("torture/test_counts.py", "torture/test_power_cuts.py"),
    ),
    Fault(
        "half-done-operation-kept",
        "journal",
        "an operation that fails half-way stays in the commit of others",
        "raise Spoiled from error",
        "pass",
        ("contract/journal/test_group_commit.py", "contract/journal/test_transactions_spoiled.py"),
    ),
    Fault(
        "rolled-back-transaction-kept",
        "journal",
        "a transaction whose block raised is committed",
        "tx.__exit__(type(reason), reason, reason.__traceback__)",
        "tx.__exit__(None, None, None)",
        ("contract/journal/test_transactions.py",),
    ),
    Fault(
        "failed-submission-resolves",
        "journal",
        "the ticket of a submission that failed says that it was written",
        "operation.ticket.set_outcome(operation.value, operation.error)\n            operation.done = True",
        "operation.ticket.set_outcome(operation.value, None)\n            operation.done = True",
        ("contract/journal/test_group_commit.py", "contract/journal/test_topic_append.py"),
    ),
    Fault(
        "failed-commit-remembered",
        "journal",
        "after a commit that failed, the writer goes on from what it would have written",
        "            self.catalog.forget()\n            fail_all(batch, error)",
        "            fail_all(batch, error)",
        ("crash/journal/test_journal_faults.py", "contract/journal/test_group_commit.py"),
    ),
    Fault(
        "expectation-not-compared",
        "journal",
        "an append succeeds although its entity has moved on",
        "            if actual != expected:\n                raise conflict(",
        "            if actual < expected:\n                raise conflict(",
        ("contract/journal/test_topic_append.py", "contract/entity/test_entity_streams.py"),
    ),
    Fault(
        "dedup-key-forgotten-early",
        "journal",
        "a dedup key counts for half of the topic's window",
        "now_ms - original.recorded_ms < window * 1000",
        "now_ms - original.recorded_ms < window * 500",
        ("contract/journal/test_topic_append.py",),
    ),
    Fault(
        "cursor-moves-back",
        "journal",
        "a late commit moves a consumer's cursor back",
        "or current is None or seq > current or (back and seq != current):",
        "or current is None or seq != current:",
        ("contract/journal/test_cursors.py",),
    ),
    Fault(
        "last-event-of-a-range-left-out",
        "journal",
        "a read through a position in the middle of a block ends one event early",
        "rows = rows if plain else wanted_rows(wanted, block, rows)",
        "rows = rows[: -1 if block.last > high else None] if plain else wanted_rows(wanted, block, rows)",
        ("contract/journal/test_topic_read.py",),
    ),
    Fault(
        "follower-skips-an-event",
        "journal",
        "a follower goes on one position too far when a step was full",
        "through = events[-1].seq if len(events) == limit else through",
        "through = events[-1].seq + 1 if len(events) == limit else through",
        ("contract/journal/test_subscription.py", "contract/journal/test_following_chosen.py"),
    ),
    Fault(
        "trimmed-history-skipped",
        "journal",
        "a consumer that lapsed skips removed history without an error",
        "if 0 < after < trimmed:",
        "if 0 < after < 0:",
        ("contract/journal/test_compaction.py", "contract/journal/test_subscription.py"),
    ),
    Fault(
        "block-checksum-not-compared",
        "journal",
        "a block with a changed byte is read",
        "if found != int.from_bytes(value[-4:]) or len(value) < 5:",
        "if len(value) < 5:",
        ("journal/test_block.py", "crash/journal/test_journal_damage.py"),
    ),
    Fault(
        "retention-removes-one-too-many",
        "journal",
        "a topic keeps one event fewer than its max_events",
        "latest - settings.max_events)",
        "latest - settings.max_events + 1)",
        ("contract/journal/test_compaction.py",),
    ),
    Fault(
        "compaction-passes-consumers",
        "journal",
        "compaction removes what a consumer has not read yet",
        "through, stopped_at = done, holder",
        "stopped_at = holder",
        ("contract/journal/test_compaction.py", "contract/journal/test_cursors.py"),
    ),
    Fault(
        "staged-batch-published-again",
        "journal",
        "a staged batch that was published is not remembered",
        "        if refs or remember:\n            commit.tx.put(keys.published_key(batch)",
        "        if refs:\n            commit.tx.put(keys.published_key(batch)",
        ("contract/journal/test_bulk_staging.py", "server/test_staging_api.py"),
    ),
    Fault(
        "transactions-in-a-row-keep-others-waiting",
        "journal",
        "a thread that begins one transaction after the other passes those who wait",
        "if not self._pending and self._try_to_lead():\n            return\n        turn",
        "if self._try_to_lead():\n            return\n        turn",
        ("contract/journal/test_transactions.py",),
    ),
    # ── index ────────────────────────────────────────────────────────────────────────────────────────────────────────
    Fault(
        "look-up-repeats-its-start",
        "index",
        "a look-up after a position gives the event at that position again",
        "while start < stop and seqs[start] <= after:",
        "while start < stop and seqs[start] < after:",
        (
            "contract/entity/test_entity_streams.py",
            "contract/journal/test_topic_read.py",
            "journal/test_index_steps.py",
        ),
    ),
    Fault(
        "filter-denies-a-key",
        "index",
        "the Bloom filter of a run denies keys that are in it",
        "return zlib.crc32(key.encode()) in known",
        "return zlib.crc32(key.encode()) ^ 1 in known",
        ("contract/entity/test_entity_streams.py", "journal/test_index_steps.py"),
    ),
    Fault(
        "newest-event-of-a-key-forgotten",
        "index",
        "an expectation is compared with nothing where the key's events are older than the process",
        "known[key] = found._rows.seq(found._row) if found else 0",
        "known[key] = 0",
        ("contract/entity/test_entity_streams.py", "contract/journal/test_topic_append.py"),
    ),
    Fault(
        "memtable-misses-a-commit",
        "index",
        "a commit that came in between is not noticed by the memtable",
        "if self.covered != covered or self._over:\n                return True",
        "if self._over:\n                return True",
        ("journal/test_memtable.py", "contract/entity/test_entity_streams.py"),
    ),
    Fault(
        "look-up-ends-at-a-file",
        "index",
        "a look-up that knows a large newest block misses what follows a file of a bulk write",
        "max(state.trimmed, state.compacted, state.referred)",
        "max(state.trimmed, state.compacted)",
        ("contract/journal/test_bulk_segments.py",),
    ),
    Fault(
        "one-tag-of-several-is-enough",
        "index",
        "a read by two tags gives the events that have either",
        "if all(head == sign * furthest for head in heads):",
        "if any(head == sign * furthest for head in heads):",
        ("contract/journal/test_topic_tags.py",),
    ),
    # ── sealing ──────────────────────────────────────────────────────────────────────────────────────────────────────
    Fault(
        "sealed-checksum-not-compared",
        "sealing",
        "a changed byte of sealed history is read",
        "if zlib.crc32(view[max(0, self._start(number) - start) : end - start]) != crc:",
        "if crc < 0:",
        ("crash/journal/test_sealed_damage.py", "torture/damage/test_damage.py"),
    ),
    Fault(
        "seal-removes-one-too-many",
        "sealing",
        "sealing removes the event behind the file from the store",
        "remove_blocks(commit, self.topic, head.topic_id, state, segment.last)",
        "remove_blocks(commit, self.topic, head.topic_id, state, segment.last + 1)",
        ("contract/journal/test_sealing.py",),
    ),
    Fault(
        "seam-loses-an-event",
        "sealing",
        "a read over the end of sealed history leaves out the first event behind it",
        "in_files=True)\n            after = state.sealed",
        "in_files=True)\n            after = state.sealed + 1",
        ("contract/journal/test_sealing.py", "journal/test_lake_tables.py"),
    ),
    Fault(
        "lake-of-a-copy-accepted",
        "sealing",
        "a journal seals into the folder of another copy of it",
        "if marker.seal not in {seals.markers.get(lake), seals.token, *own}:",
        "if not marker.seal:",
        ("contract/journal/test_sealing.py",),
    ),
    Fault(
        "sql-reads-sealed-history-twice",
        "sealing",
        "a query reads the sealed files and the same events from the journal",
        "table.after = through",
        "table.after = table.scan.after",
        ("test_sql.py",),
    ),
    # ── engines ──────────────────────────────────────────────────────────────────────────────────────────────────────
    Fault(
        "file-commit-without-sync",
        "engine",
        "the file engine does not sync its commits",
        "            if sync:\n                self._sync(self._data)",
        "            if False:\n                self._sync(self._data)",
        ("torture/test_counts.py", "torture/test_power_cuts.py -k file"),
    ),
    Fault(
        "file-record-checksum-not-compared",
        "engine",
        "the file engine takes a damaged record for a commit",
        " or crc != crc32(table, crc32(head[8:], self.seed)):",
        ":",
        ("crash/engine/test_engine_file_damage.py",),
    ),
    Fault(
        "file-value-checksum-not-compared",
        "engine",
        "the file engine hands out a value with a changed byte",
        "if len(value) != length or crc32(value) != pointer & 0xFFFFFFFF:",
        "if len(value) != length:",
        ("crash/engine/test_engine_file_damage.py",),
    ),
    Fault(
        "rocksdb-commit-without-sync",
        "engine",
        "the RocksDB engine does not sync its commits",
        "self._unsynced if relaxed else self._synced",
        "self._unsynced",
        ("torture/test_counts.py", "torture/test_power_cuts.py -k rocksdb"),
    ),
    Fault(
        "rocksdb-vouchers-not-compared",
        "engine",
        "the RocksDB engine takes damage of its log for what a crash tore off",
        "if (known := SyncMark(folder).highest()) > last:",
        "if (known := 0) > last:",
        ("crash/engine/test_engine_rocksdb.py",),
    ),
    Fault(
        "rocksdb-manifest-must-name-its-log",
        "engine",
        "a RocksDB store that was opened before is refused after a power cut during a flush",
        "numbers_of_logs = range(log, max(log + 1, opened))",
        "numbers_of_logs = range(log, log + 1)",
        ("crash/engine/test_engine_rocksdb.py",),
    ),
    Fault(
        "sqlite-log-not-repaired",
        "engine",
        "the SQLite engine commits behind pages that a failed sync has lost",
        "            if self._wal.in_doubt:\n                self._wal.repair()",
        "            if False:\n                self._wal.repair()",
        ("torture/test_failing_calls.py -k sqlite",),
    ),
    Fault(
        "sqlite-log-without-a-name",
        "engine",
        "the name of SQLite's log is not synced when a store is opened again",
        "sync_folder(self._path.parent)\n\n    # reading",
        "\n    # reading",
        ("torture/test_failing_calls.py -k sqlite",),
    ),
    Fault(
        "object-store-acknowledges-without-lease",
        "engine",
        "a writer in a bucket acknowledges after its lease has run out",
        "return self._lost is None and self._clock() < self._good_until",
        "return self._lost is None",
        ("engine/slatedb/test_lease.py", "engine/slatedb/test_failover.py"),
    ),
    # ── queue ────────────────────────────────────────────────────────────────────────────────────────────────────────
    Fault(
        "lease-handed-out-twice",
        "queue",
        "a message that was taken is taken again at once",
        "record.frontier += count\n",
        "record.frontier += count - 1\n",
        ("contract/queue/test_queue_delivery.py", "contract/queue/test_queue_order.py"),
    ),
    Fault(
        "lost-ack",
        "queue",
        "an acknowledged message of a lease over several comes back",
        'lease.settled = mask.to_bytes((lease.count + 7) // 8, "little")',
        "lease.settled = bytes((lease.count + 7) // 8)",
        ("contract/queue/test_queue_delivery.py",),
    ),
    Fault(
        "stale-delivery-accepted",
        "queue",
        "a delivery whose lease was lost settles the message of a later one",
        "if lease is None or lease.secret != hold.secret or not lease.holds(delivery._index):",
        "if lease is None or not lease.holds(delivery._index):",
        ("contract/queue/test_queue_delivery.py",),
    ),
    Fault(
        "lease-ends-late",
        "queue",
        "a message comes back a second after its lease has ended",
        "over = [index for index in lease.held() if lease.deadline_of(index) <= now]",
        "over = [index for index in lease.held() if lease.deadline_of(index) <= now - 1000]",
        ("contract/queue/test_queue_delivery.py", "contract/queue/test_queue_outcomes.py"),
    ),
    Fault(
        "one-attempt-too-many",
        "queue",
        "a message is tried once more than its budget allows",
        "return message.attempts >= queue.budget(snap, message.seq)",
        "return message.attempts > queue.budget(snap, message.seq)",
        ("contract/queue/test_queue_failures.py", "contract/queue/test_queue_delivery.py"),
    ),
    Fault(
        "dead-letter-lost",
        "queue",
        "a message whose attempts are used up is gone",
        "    (receipt,) = push(commit, letters, as_batch(columns), None, forced=True)\n    carry_steps(",
        "    receipt = event\n    carry_steps(",
        ("contract/queue/test_queue_failures.py",),
    ),
    Fault(
        "ordering-key-not-kept",
        "queue",
        "a message is delivered beside an earlier one of its ordering key",
        "return value is not None and len(value) >= 8 * self.queue.record.policy.max_in_flight_per_key",
        "return value is not None and len(value) > 8 * self.queue.record.policy.max_in_flight_per_key",
        ("contract/queue/test_queue_order.py", "model/test_surface_model.py"),
    ),
    Fault(
        "rate-exceeded",
        "queue",
        "one message more than the rate allows begins in a period",
        "return max(0, rate.count - sum(count for _, count in self.begun))",
        "return max(0, rate.count + 1 - sum(count for _, count in self.begun))",
        ("contract/queue/test_queue_rates.py",),
    ),
    Fault(
        "delayed-message-early",
        "queue",
        "a delayed message is delivered a second early",
        "keys.waiting_key(self.prefix, now + 1, 0)",
        "keys.waiting_key(self.prefix, now + 1001, 0)",
        (
            "contract/queue/test_queue_delivery.py",
            "contract/queue/test_queue_order.py",
            "contract/queue/test_queue_failures.py",
        ),
    ),
    # ── entity ───────────────────────────────────────────────────────────────────────────────────────────────────────
    Fault(
        "fence-ignored",
        "entity",
        "others append while an exclusive fence is open",
        "return barrier is not None and not barrier.passing",
        "return False",
        ("contract/entity/test_entity_fences.py", "contract/entity/test_fence_holders.py"),
    ),
    Fault(
        "proof-not-compared",
        "entity",
        "a proof of an event that is not in the history holds",
        "if found is None or found.hex() != claimed.hash:",
        "if found is None:",
        ("contract/entity/test_entity_receipts.py", "test_merkle_tree.py"),
    ),
    Fault(
        "outbox-flushes-twice",
        "entity",
        "what an outbox has appended stays staged",
        "receipts = core.writer.run(request)\n        staged.clear()",
        "receipts = core.writer.run(request)",
        ("contract/entity/test_entity_outbox.py",),
    ),
    Fault(
        "gate-sees-the-first-draft-only",
        "entity",
        "a gate is not asked about the second draft of a batch",
        "            guard(name, drafts)",
        "            guard(name, drafts[:1])",
        ("contract/entity/test_entity_gates.py",),
    ),
    Fault(
        "states-of-a-dropped-topic",
        "entity",
        "a cached projection shows the state of a topic that was dropped",
        "if known is None or known[0] != changes:",
        "if known is None:",
        ("contract/entity/test_entity_projections.py", "contract/entity/test_entity_rebuilds.py"),
    ),
    # ── server ───────────────────────────────────────────────────────────────────────────────────────────────────────
    Fault(
        "page-cut-one-event-early",
        "server",
        "the page after this one begins one event too late",
        "return events, last.seq - 1 if self.query.reverse else last.seq",
        "return events, last.seq - 1 if self.query.reverse else last.seq + 1",
        ("server/test_topics_api.py", "server/over_http/test_http_topic_read.py"),
    ),
    Fault(
        "role-not-compared",
        "server",
        "a token that may read may also write",
        "if ROLES.index(has) < ROLES.index(role):",
        "if has not in ROLES:",
        ("server/test_roles.py", "server/test_access.py"),
    ),
    Fault(
        "foreign-host-answered",
        "server",
        "a request for another name than the server's is answered",
        "if self._hosts and _host_name(host) not in self._hosts:",
        "if self._hosts and not _host_name(host):",
        ("server/test_access.py", "server/test_hostile.py"),
    ),
    Fault(
        "idempotency-key-ignored",
        "server",
        "a request that is repeated with its idempotency key appends again",
        "if one.dedup is None:\n            one.dedup = caller.dedup",
        "if one.dedup is None:\n            one.dedup = None",
        ("server/test_topics_api.py",),
    ),
    Fault(
        "stream-goes-on-one-too-far",
        "server",
        "a follower over HTTP misses the event after its position",
        "query = LiveQuery(after=self._received[self._name], ",
        "query = LiveQuery(after=self._received[self._name] + 1, ",
        ("server/over_http/test_http_subscription.py --nightly over-http", "server/test_connections.py"),
    ),
    # ── buffer ───────────────────────────────────────────────────────────────────────────────────────────────────────
    Fault(
        "replaced-consumer-goes-on",
        "buffer",
        "a consumer that was replaced acknowledges",
        "if epoch not in self._epochs:",
        "if epoch < self.epoch:",
        ("buffer/test_consumer.py", "buffer/test_safety.py"),
    ),
    Fault(
        "batch-checksum-not-compared",
        "buffer",
        "a batch with a changed byte is handed out",
        "if descriptor.crc is not None and crc32(data) != descriptor.crc:",
        "if descriptor.crc is not None and not len(data):",
        ("buffer/test_checksums.py",),
    ),
    Fault(
        "one-batch-too-many-dequeued",
        "buffer",
        "an acknowledgement removes the next batch, too",
        "self._replace(snapshot, dequeue(manifest, through))",
        "self._replace(snapshot, dequeue(manifest, min(through + 1, manifest.next_sequence - 1)))",
        ("buffer/test_consumer.py",),
    ),
    Fault(
        "collector-without-grace",
        "buffer",
        "the collector deletes what a producer has just uploaded",
        "horizon = newest_old_ms + 1",
        "horizon = newest_old_ms + (1 << 40)",
        ("buffer/test_collector.py",),
    ),
    Fault(
        "entries-in-another-shard",
        "buffer",
        "the entries of one key go to different shards",
        "by_lane.setdefault(shard_of(self._key(entry), len(self._lanes)), [])",
        "by_lane.setdefault(shard_of(entry, len(self._lanes)), [])",
        ("buffer/test_shards.py",),
    ),
    # ── spark ────────────────────────────────────────────────────────────────────────────────────────────────────────
    Fault(
        "batch-written-twice",
        "spark",
        "a batch of a stream that runs again is appended again",
        "        return False\n    commit.check_barrier(None if queue",
        "        pass\n    commit.check_barrier(None if queue",
        ("spark/test_staging.py", "spark/test_sink.py", "spark/test_sink_edges.py"),
    ),
    Fault(
        "staged-piece-not-compared",
        "spark",
        "the commit publishes a staged piece that is not as its task left it",
        "if _hash(found) != piece.hash:",
        "if not found:",
        ("spark/test_staging.py", "spark/test_sink_edges.py", "spark/test_sink.py"),
    ),
    Fault(
        "offsets-lose-the-last-event",
        "spark",
        "a micro-batch reads one event fewer than its offsets say",
        "ends = {name: min(position, latest[name]) for name, position in end.items() if name in latest}",
        "ends = {name: max(0, min(position, latest[name]) - 1) for name, position in end.items() if name in latest}",
        ("spark/test_source_stream.py",),
    ),
    Fault(
        "offsets-beyond-their-share",
        "spark",
        "a limited micro-batch is as large as everything that waits",
        "share = min(left, waiting[name], -(-most * waiting[name] // total))",
        "share = waiting[name]",
        ("spark/test_source_stream.py",),
    ),
    Fault(
        "task-reads-another-journal",
        "spark",
        "a task reads whatever journal is in the place of the planned one",
        "return [TaskRanges(topics.journal.id, found)",
        'return [TaskRanges("", found)',
        ("spark/test_source_batch.py", "spark/test_reach.py"),
    ),
    Fault(
        "erased-bytes-stay-in-free-pages",
        "engine",
        "maintain does not write the database anew after an erasure",
        'self._writer_execute("VACUUM")',
        'self._writer_execute("SELECT 1")',
        ("contract/journal/test_erasing.py -k no_byte_is_left",),
    ),
    Fault(
        "erased-dedup-keys-stay",
        "journal",
        "an erasure forgets no dedup key",
        "if self._holds(dedup_position(value)):",
        "if dedup_position(value) < 0:",
        ("contract/journal/test_erasing.py",),
    ),
    Fault(
        "erased-leaves-change-the-tree",
        "entity",
        "the hash of an erased event is that of what is left of it",
        "hashes[row] = known_hash(snap, topic, seq) or hashes[row]",
        "hashes[row] = hashes[row] or known_hash(snap, topic, seq)",
        ("contract/journal/test_erasing.py -k proofs",),
    ),
    Fault(
        "an-erasure-that-was-cut-off-is-forgotten",
        "journal",
        "no process ends an erasure that another one has begun",
        "if not is_alive(one.owner):",
        "if not one.owner:",
        ("contract/journal/test_erasing.py -k cut_off",),
    ),
)
