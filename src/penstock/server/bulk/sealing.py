"""Sealing for a client: this process writes the files, step by step, into lakes it was started with, and lists them.

A client that may write may not choose any place of the server's disk: a lake is one of those the operator named, and a
catalog a name in the server's own configuration. A step is what `seal` does: killed or asked for twice, it goes on.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from starlette.concurrency import run_in_threadpool

from penstock.errors import ConfigError
from penstock.journal.sealed.report import FILE_EVENTS, SealReport, lake_summaries
from penstock.names import check_name, shown_url
from penstock.protocol import bulk as operations
from penstock.protocol.bulk import LakeList, LakesQuery, SealRequest
from penstock.server.api.binding import Call, serves
from penstock.transfer.causes import topic_names


def lakes_by_name(urls: Iterable[str]) -> dict[str, str]:
    """The lakes a server seals to, by what clients call them: their urls without options and credentials."""
    return {shown_url(place): place for place in (_place(url) for url in urls)}


def _place(url: str) -> str:
    return url.rstrip("/") if "://" in url else os.path.abspath(url)  # noqa: PTH100


@serves(operations.SEAL_TOPIC)
async def seal_topic(call: Call[None, SealRequest]) -> SealReport:
    async with call.service.sealing:
        return await run_in_threadpool(_seal_step, call)


def _seal_step(call: Call[None, SealRequest]) -> SealReport:
    from penstock.journal.sealed import sealing  # pyarrow is loaded by servers that seal
    from penstock.journal.sealed.tables import TableRequest

    wanted = call.body
    lake = call.service.lakes.get(shown_url(wanted.lake.rstrip("/")))
    if lake is None:
        raise ConfigError(
            f"this server does not seal to {shown_url(wanted.lake)[:200]!r}, only to "
            f"{', '.join(call.service.lakes) or 'nowhere'}: start it with --lake, or seal where the store is"
        )
    if wanted.catalog is not None and "://" in wanted.catalog:
        raise ConfigError("a served journal is sealed into a catalog by its name in the server's ~/.pyiceberg.yaml")
    return sealing.seal_topic(
        call.service.journal._core,
        call.name("topic"),
        lake=lake,
        through=wanted.through,
        file_events=wanted.file_events,
        table=TableRequest(wanted.format, wanted.columns, wanted.catalog, wanted.partition_by),
        compact=wanted.compact,
        most=FILE_EVENTS,
    )


@serves(operations.LIST_LAKES)
def list_lakes(call: Call[LakesQuery, None]) -> LakeList:
    with call.service.journal._engine.read() as snap:
        names = [check_name(name) for name in call.query.topic] or list(topic_names(snap))
        return LakeList([one for name in names for one in lake_summaries(snap, name)])
