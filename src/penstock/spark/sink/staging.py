"""Where tasks leave the blocks they made until the commit publishes them.

A small share travels inside the task's commit message. A larger one lies in a file, in a folder next to the journal
(or where option("staging", …) says): one folder per query or job, file names that begin with the batch. A task that is
tried twice leaves two files; only the one whose message reaches the commit counts, the rest are swept away.

Tasks make blocks of rows that they have checked, and the message says which bytes they were: what lies in the file by
then must be the same, so that the commit need not check them again.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Protocol

import msgspec
from pyspark.sql.datasource import WriterCommitMessage

from penstock.engine.url import parse_url
from penstock.errors import StorageError
from penstock.journal.storage.pending import decode_pending
from penstock.journal.storage.wire import Wire, encode_wire
from penstock.spark.source.stores import writing
from penstock.transfer.objects import encode_piece
from penstock.transfer.publishing import Blocks, publish_blocks

PIECE_BYTES = 4 << 20
"""Bytes of blocks that a task sends to a server, or puts into an object, at a time, about."""
_INLINE_BYTES = 1 << 20
"""Up to this size a task's blocks travel in its message."""
_FORGOTTEN = 7 * 24 * 3600.0
"""Seconds after which a folder that is not written to belongs to a job that was killed and never came back."""
_JOB = re.compile(r"[0-9a-f]{32}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_SHARE = re.compile(r"[0-9]+-[0-9a-f]{32}")
"""The names of a job's folder and of the files in it: what is swept in a folder that others may use as well."""
_TRIES = 20
"""How often a folder is made that others may remove, because it is empty, before a file is in it."""


@dataclass
class StagedShare(WriterCommitMessage):
    """What one task has staged."""

    query: str | None
    events: int = 0
    keyed: bool = False
    """Whether any event has a key."""


class Publication(msgspec.Struct, frozen=True):
    """What a commit is to do with what tasks have staged."""

    journal: str | None
    """The id of the journal it was planned for; None when there was none yet."""
    mark: str | None
    version: int
    queue: str | None
    gates: tuple[str, ...]
    """The names of gates that see its rows, where the commit is this process's own."""


class Staging(Protocol):
    """Where the tasks of one query or job leave their blocks until the commit publishes them."""

    def of(self, job: str) -> Staging:
        """The same for another query."""
        ...

    def stage(self, blocks: Iterable[tuple[str, Wire]], query: str | None, batch: str) -> StagedShare:
        """Keeps a task's blocks until the commit."""
        ...

    def publish(self, shares: Sequence[StagedShare], wanted: Publication) -> None:
        """Appends what tasks have staged, in one transaction; nothing when the mark says that it was done before."""
        ...

    def sweep(self, through: int) -> None:
        """Removes what batches up to and including one have left."""
        ...

    def remove(self) -> None:
        """Removes everything this job has left."""
        ...


@dataclass
class StagedBlocks(StagedShare):
    """What one task has staged in a folder, or carries along."""

    blocks: list[tuple[str, bytes]] = field(default_factory=list)
    """Topics and blocks, when they are small."""
    file: str | None = None
    pieces: list[tuple[str, int, bytes]] = field(default_factory=list)
    """Topics, lengths and hashes of the blocks in the file, in order."""
    host: str = ""

    @property
    def size(self) -> int:
        """Bytes staged."""
        return sum(len(block) for _, block in self.blocks) + sum(length for _, length, _ in self.pieces)

    def wires(self) -> Iterator[tuple[str, Wire]]:
        """The topics and blocks, in order."""
        for topic, block in self.blocks:
            yield topic, decode_pending(block)
        if self.file is None:
            return
        try:
            with Path(self.file).open("rb") as file:
                for topic, length, made in self.pieces:
                    block = file.read(length)
                    if hash_of(block) != made:
                        raise StorageError(f"the staged file {self.file} is not as its task left it: run again")
                    yield topic, decode_pending(block)
        except FileNotFoundError as error:
            raise StorageError(
                f"what a task on {self.host} staged in {self.file} is not there for the commit on "
                f"{os.uname().nodename}: a journal lies on one machine. Use a master on this machine, a staging folder "
                "that all machines share, or write to a buffer"
            ) from error


def hash_of(staged: bytes) -> bytes:
    """Tells what a task has staged from everything else."""
    return hashlib.sha256(staged).digest()


def pieces_of(blocks: Iterable[tuple[str, Wire]], share: StagedShare) -> Iterator[bytes]:
    """The blocks, as many at a time as make one request or object; what they hold is counted in the share."""
    piece: list[tuple[str, bytes]] = []
    size = 0
    for topic, wire in blocks:
        share.events += wire.count
        share.keyed = share.keyed or wire.key is not None
        piece.append((topic, encode_wire(wire)))
        size += len(piece[-1][1])
        if size >= PIECE_BYTES:
            yield encode_piece(piece)
            piece, size = [], 0
    if piece:
        yield encode_piece(piece)


class StagingFolder:
    """The staging folder of one query or job."""

    def __init__(self, url: str, root: str, owner: str) -> None:
        self.url = url
        self.root = Path(root)
        self.path = self.root / owner

    def of(self, job: str) -> StagingFolder:
        """The folder of another query."""
        return StagingFolder(self.url, str(self.root), job)

    def publish(self, shares: Sequence[StagedShare], wanted: Publication) -> None:
        """Appends what tasks have staged; nothing when the mark says that it was done before."""
        staged = [share for share in shares if isinstance(share, StagedBlocks)]
        blocks = Blocks(
            (piece for share in staged for piece in share.wires()),
            sum(share.size for share in staged),
            sum(share.events for share in staged),
            any(share.keyed for share in staged),
        )
        with writing(self.url, wanted.journal, wanted.gates) as opened:
            publish_blocks(opened, blocks, wanted.mark, wanted.version, wanted.queue)

    def stage(self, blocks: Iterable[tuple[str, Wire]], query: str | None, batch: str) -> StagedBlocks:
        """Keeps a task's blocks until the commit."""
        message = StagedBlocks(query, host=os.uname().nodename)
        size = 0
        file = None
        path = self.path / f"{batch}-{uuid.uuid4().hex}"
        try:
            for topic, wire in blocks:
                encoded = encode_wire(wire)
                message.events += wire.count
                message.keyed = message.keyed or wire.key is not None
                size += len(encoded)
                if file is None:
                    message.blocks.append((topic, encoded))
                    if size <= _INLINE_BYTES:
                        continue
                    file = self._begin(path)
                    message.file = str(path)
                    for held in message.blocks:
                        _add(file, message, *held)
                    message.blocks = []
                else:
                    _add(file, message, topic, encoded)
        except BaseException:
            if file is not None:
                file.close()
                path.unlink(missing_ok=True)
            raise
        if file is not None:
            file.close()
        return message

    def _begin(self, path: Path) -> BinaryIO:
        """Opens a file to write; its folder may be removed meanwhile, by a query that found it or the root empty."""
        for _ in range(_TRIES - 1):
            with suppress(FileNotFoundError):
                self.path.mkdir(parents=True, exist_ok=True)
                return path.open("wb")
        self.path.mkdir(parents=True, exist_ok=True)
        return path.open("wb")

    def sweep(self, through: int) -> None:
        """Removes what batches up to and including one have left."""
        with suppress(FileNotFoundError):
            for file in self.path.iterdir():
                batch = file.name.partition("-")[0]
                if batch.isdigit() and int(batch) <= through:
                    file.unlink(missing_ok=True)
            with suppress(OSError):  # a newer batch is being staged
                self.path.rmdir()
            self._sweep_forgotten()

    def remove(self) -> None:
        """Removes everything this job has left."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._sweep_forgotten()

    def _sweep_forgotten(self) -> None:
        with suppress(OSError):
            for folder in self.root.iterdir():
                if _is_forgotten(folder):
                    shutil.rmtree(folder, ignore_errors=True)
            if self.root == Path(staging_root(self.url, None)):  # one that was named is its owner's, also when empty
                self.root.rmdir()


def _is_forgotten(folder: Path) -> bool:
    """Whether a folder is a job's, with nothing in it but what tasks staged, that was not written to for long."""
    if not _JOB.fullmatch(folder.name) or not folder.stat().st_mtime < time.time() - _FORGOTTEN:
        return False
    return folder.is_dir() and all(_SHARE.fullmatch(file.name) for file in folder.iterdir())


def _add(file: BinaryIO, message: StagedBlocks, topic: str, encoded: bytes) -> None:
    file.write(encoded)
    message.pieces.append((topic, len(encoded), hash_of(encoded)))


def staging_root(url: str, given: str | None) -> str:
    """The folder under which tasks stage what they write to a journal."""
    if given is not None:
        return os.path.abspath(given)  # noqa: PTH100
    return parse_url(url)[1] + ".staging"
