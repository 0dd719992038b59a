"""A journal as the checkpointer of LangGraph: graphs continue after a restart, and their threads have a history.

    graph = builder.compile(checkpointer=PenstockSaver(journal))

A checkpoint is an event. Its key is made of its thread, its namespace and its id. The key of a write also has the task
and the write's number. A header holds these names. The newest event of a key counts; an event of the kind `deleted`
says that the key has no value any more. The topic is compacted by key, so deleted and replaced data leaves the disk.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, ParamSpec, TypeVar

import msgspec

import penstock
from penstock.integrations import needed_for

with needed_for("langgraph"):
    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint import base

P = ParamSpec("P")
R = TypeVar("R")
SEPARATOR = "/"
DELTAS = "counters_since_delta_snapshot"
"""The metadata field with the counters of channels.

A channel whose counters are not 0 also needs the checkpoints before this one.
"""
CHECKPOINT, WRITE, DELETED = "checkpoint", "write", "deleted"
_PACK, _UNPACK = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder().decode


def _awaited(method: Callable[P, R]) -> Callable[P, Awaitable[R]]:
    """Returns a method in the form for an event loop: the method runs in a thread beside the loop."""

    @functools.wraps(method)
    async def awaited(*args: P.args, **kwargs: P.kwargs) -> R:
        return await asyncio.to_thread(method, *args, **kwargs)

    return awaited


class PenstockSaver(base.BaseCheckpointSaver[int]):
    """A store of graphs' checkpoints in a topic of a journal. It is thread-safe, as the journal is."""

    def __init__(
        self, journal: penstock.Journal, topic: str = "langgraph", *, serde: base.SerializerProtocol | None = None
    ) -> None:
        super().__init__(serde=serde)
        self._topic = journal.topic(topic)
        if not self._topic.settings.by_key:
            self._topic.configure(by_key=True)

    # ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def put(
        self, config: RunnableConfig, checkpoint: base.Checkpoint, metadata: base.CheckpointMetadata, new_versions: Any
    ) -> RunnableConfig:
        """Stores a checkpoint, and returns the config that names it."""
        thread, namespace = _place(config)
        kept = self.serde.dumps_typed(base.get_checkpoint_metadata(config, metadata))
        payload = _PACK((self.serde.dumps_typed(checkpoint), kept, config["configurable"].get("checkpoint_id")))
        self._topic.append(CHECKPOINT, payload, **_named(thread, namespace, checkpoint["id"]))
        return _config(thread, namespace, checkpoint["id"])

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Stores the writes of a task after a checkpoint. An earlier write with the same number is not replaced."""
        checkpoint, drafts = config["configurable"]["checkpoint_id"], []
        for position, (channel, value) in enumerate(writes):
            index = base.WRITES_IDX_MAP.get(channel, position)
            named = _named(*_place(config), checkpoint, task_id, str(index))
            payload = _PACK((task_id, channel, self.serde.dumps_typed(value), task_path, index))
            drafts.append(penstock.Draft(WRITE, payload, dedup=named["key"] if index >= 0 else None, **named))
        self._topic.append_many(drafts)

    def delete_thread(self, thread_id: str) -> None:
        """Deletes the checkpoints and writes of a thread."""
        self._delete(self._newest(thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Deletes the checkpoints of some runs, with their writes. This reads the checkpoints of every thread."""
        for found in self._checkpoints():
            if self._metadata(found).get("run_id") in run_ids:
                self._delete_checkpoint(found)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copies the checkpoints and writes of a thread to another thread, in one batch."""
        found = reversed(list(self._newest(source_thread_id)))
        self._topic.append_many(
            penstock.Draft(one.kind, one.payload, **_named(target_thread_id, *_names(one)[1:])) for one in found
        )

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Deletes, for some threads, all checkpoints but the newest of each namespace, or all checkpoints (`delete`).

        If a channel stores only changes, the checkpoints since its last complete value are kept too.
        """
        if strategy not in ("keep_latest", "delete"):
            raise penstock.errors.ConfigError(f'strategy is "keep_latest" or "delete", not {strategy!r}')
        for thread in thread_ids:
            if strategy == "delete":
                self.delete_thread(thread)
                continue
            needed: dict[str, str | None] = {}
            for found in list(self._checkpoints(thread)):
                _, namespace, identity = _names(found)
                if needed.setdefault(namespace, identity) != identity:
                    self._delete_checkpoint(found)
                else:
                    counters = self._metadata(found).get(DELTAS, {}).values()
                    needed[namespace] = _UNPACK(found.payload)[2] if any(map(any, counters)) else None

    def _delete_checkpoint(self, found: penstock.Event[bytes]) -> None:
        self._delete([found, *self._newest(*_names(found), below=True)])

    def _delete(self, events: Iterable[penstock.Event[bytes]]) -> None:
        self._topic.append_many(penstock.Draft(DELETED, b"", key=one.key, headers=one.headers) for one in events)

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def get_tuple(self, config: RunnableConfig) -> base.CheckpointTuple | None:
        """Returns the checkpoint that a config names, or the newest checkpoint of its thread and namespace."""
        thread, namespace = _place(config)
        if (identity := base.get_checkpoint_id(config)) is None:
            found = next(self._checkpoints(thread, namespace), None)
        else:
            found = next(self._topic.read(key=_key(thread, namespace, identity), reverse=True, limit=1), None)
        return None if found is None or found.kind == DELETED else self._tuple(found)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[base.CheckpointTuple]:
        """Yields checkpoints, newest first: of a thread, or of all threads without a config; of one namespace if the
        config names it.

        With `filter`, only checkpoints whose metadata has these values are included.
        """
        place = config["configurable"] if config else {}
        identity, last = place.get("checkpoint_id"), base.get_checkpoint_id(before) if before else None
        wanted = filter or {}
        found = (
            self._tuple(one)
            for one in self._checkpoints(place.get("thread_id"), place.get("checkpoint_ns"))
            if (not identity or _names(one)[2] == identity)
            and (not last or _names(one)[2] < last)
            and all(self._metadata(one).get(name) == value for name, value in wanted.items())
        )
        return itertools.islice(found, limit)

    def _newest(self, *names: str, below: bool = False) -> Iterator[penstock.Event[bytes]]:
        """Yields the newest event of each key that begins with these names, newest first. Deleted keys are left out.

        With `below`, the key that has exactly these names is left out.
        """
        seen: set[str | None] = {_key(*names)} if below else set()
        prefix = _key(*names) + SEPARATOR if names else None
        for event in self._topic.read(key_prefix=prefix, reverse=True):
            if event.key not in seen:
                seen.add(event.key)
                if event.kind != DELETED:
                    yield event

    def _checkpoints(self, thread: str | None = None, namespace: str | None = None) -> Iterator[penstock.Event[bytes]]:
        names = [name for name in (thread, namespace) if name is not None]
        return (found for found in self._newest(*names) if found.kind == CHECKPOINT)

    def _metadata(self, found: penstock.Event[bytes]) -> base.CheckpointMetadata:
        return self.serde.loads_typed(_UNPACK(found.payload)[1])

    def _tuple(self, found: penstock.Event[bytes]) -> base.CheckpointTuple:
        thread, namespace, identity = _names(found)
        checkpoint, metadata, parent = _UNPACK(found.payload)
        writes = [_UNPACK(one.payload) for one in self._newest(thread, namespace, identity, below=True)]
        writes.sort(key=lambda one: base.writes_sort_key(one[3], one[0], one[4]))
        return base.CheckpointTuple(
            config=_config(thread, namespace, identity),
            checkpoint=self.serde.loads_typed(checkpoint),
            metadata=self.serde.loads_typed(metadata),
            parent_config=_config(thread, namespace, parent) if parent else None,
            pending_writes=[(task, channel, self.serde.loads_typed(value)) for task, channel, value, _, _ in writes],
        )

    # ── for event loops ──────────────────────────────────────────────────────────────────────────────────────────────
    aput = _awaited(put)
    aput_writes = _awaited(put_writes)
    aget_tuple = _awaited(get_tuple)
    adelete_thread = _awaited(delete_thread)
    adelete_for_runs = _awaited(delete_for_runs)
    acopy_thread = _awaited(copy_thread)
    aprune = _awaited(prune)

    async def alist(self, config: RunnableConfig | None, **options: Any) -> AsyncIterator[base.CheckpointTuple]:
        """Does the same as `list`, for an event loop."""
        found = self.list(config, **options)
        while (one := await asyncio.to_thread(next, found, None)) is not None:
            yield one


def _place(config: RunnableConfig) -> tuple[str, str]:
    """Returns the thread and the namespace of a config."""
    place = config["configurable"]
    return str(place["thread_id"]), place.get("checkpoint_ns") or ""


def _config(thread: str, namespace: str, identity: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": namespace, "checkpoint_id": identity}}


def _key(*names: str) -> str:
    """Returns a key made of the names' hashes.

    However long a name is, and whatever it contains, the key begins with the key of the first names.
    """
    return SEPARATOR.join(hashlib.blake2b(name.encode(), digest_size=16).hexdigest() for name in names)


def _named(*names: str) -> dict[str, Any]:
    """Returns the key of an event, and a header with the names themselves."""
    return {"key": _key(*names), "headers": {"names": msgspec.json.encode(names).decode()}}


def _names(event: penstock.Event[bytes]) -> list[str]:
    """Returns the names of an event: a thread, a namespace and a checkpoint. A write also has a task and its number."""
    return list(msgspec.json.decode(event.headers["names"]))
