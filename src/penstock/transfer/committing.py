"""The operations that plan and commit what other processes have staged."""

from __future__ import annotations

import msgspec

from penstock.core.engine.contract import ObjectEngine
from penstock.core.journal.sealed.referring import find_target, plan_bulk
from penstock.core.journal.sealed.segments import BulkSegments
from penstock.core.local.backend import LocalBackend
from penstock.core.names import check_name, shown_url
from penstock.core.protocol import bulk as wire
from penstock.core.protocol.operation import Caller
from penstock.errors import ConfigError
from penstock.transfer.objects import own_lake
from penstock.transfer.publishing import BulkCommit, publish_staged


def plan_files(at: LocalBackend, caller: Caller, topic: str, asked: wire.FilesRequest) -> wire.FilesDocument:
    caller.check_append(check_name(topic))
    lake = None if asked.lake is None else lake_of(caller, asked.lake)
    if asked.columns:
        from penstock.core.journal.sealed.columns import columns_schema  # only servers that seal load pyarrow

        columns_schema(asked.columns)
    if topic in at.entities.gates.topics:
        return wire.FilesDocument()
    target, _ = find_target(at.core, topic, lake, asked.columns, _own(at))
    if target is None:
        return wire.FilesDocument()
    if "://" not in target.lake:  # by the marker in a folder its tasks see whether they are on this machine
        if asked.lake is None and topic not in at.core.topics():
            return wire.FilesDocument()
        plan_bulk(at.core, topic, target.lake)
    return wire.FilesDocument(shown_url(target.lake), target.columns)


def commit_staged(at: LocalBackend, caller: Caller, request: wire.CommitRequest) -> bool:
    if request.journal != at.id:
        raise ConfigError(
            "another journal is served here than where this write was planned: nothing of it was committed"
        )
    if request.queue is not None:
        check_name(request.queue, "queue")
    batches = [batch_of(batch) for batch in request.batches]
    files, by = _files_of(at, caller, request.files), (request.mark, request.version, request.queue, request.content)
    return publish_staged(at.journal, BulkCommit(batches, *by, files))


def _files_of(at: LocalBackend, caller: Caller, files: bytes) -> BulkSegments | None:
    """Returns the files of a commit, in lakes as the server knows them: its own ones, and the topic's."""
    if not files:
        return None
    try:
        found = msgspec.msgpack.decode(files, type=BulkSegments)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(f"these are no files of a bulk write: {error}") from error
    caller.check_append(check_name(found.topic))
    target, _ = find_target(at.core, found.topic, None, own=_own(at))
    known = {**caller.lakes, **({} if target is None else {shown_url(target.lake): target.lake})}
    for one in found.placed:
        for number, file in enumerate(one.files):
            if (lake := known.get(file.lake)) is None:
                raise ConfigError(f"no files become events from {file.lake[:200]!r}, but from {', '.join(known)}")
            one.files[number] = msgspec.structs.replace(file, lake=lake)
    return found


def _own(at: LocalBackend) -> str | None:
    """Returns the lake beside the journal's own objects; None where others find them with options of its own only."""
    engine = at.engine
    if not isinstance(engine, ObjectEngine) or engine.options.store:
        return None
    return own_lake(f"{engine.scheme}:{engine.location}")


def lake_of(caller: Caller, wanted: str) -> str:
    """Returns the lake that a caller names, with its options; ConfigError when it may not seal there."""
    lake = caller.lakes.get(shown_url(wanted.rstrip("/")))
    if lake is None:
        raise ConfigError(
            f"this server does not seal to {shown_url(wanted)[:200]!r}, only to "
            f"{', '.join(caller.lakes) or 'nowhere'}: start it with --lake, or seal where the store is"
        )
    return lake


def batch_of(text: str) -> bytes:
    """Returns a batch's name: 32 hexadecimal digits."""
    try:
        found = bytes.fromhex(text)
    except ValueError:
        found = b""
    if len(found) != 16:
        raise ConfigError(f"a batch is named by 32 hexadecimal digits, not {text[:40]!r}")
    return found
