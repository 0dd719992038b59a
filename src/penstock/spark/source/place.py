"""Which journal Spark works with: its url, made absolute, and how a server is reached."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal

import msgspec

from penstock.api import local
from penstock.engine.url import OBJECT_SCHEMES, parse_url
from penstock.errors import ConfigError
from penstock.names import shown_url, split_url
from penstock.remote.journal import RemoteJournal
from penstock.surface.journal import Journal


class Token:
    """A server's token: it goes with the work to wherever that is done, and is shown nowhere."""

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The token itself."""
        return self._text

    def __repr__(self) -> str:
        return "Token(…)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Token) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)


class JournalPlace(msgspec.Struct, frozen=True):
    """Which journal, and how it is reached."""

    url: str
    token: Token | None = None
    """For a server; without one, each process takes its own PENSTOCK_TOKEN."""
    compression: Literal["none", "gzip"] = "none"
    """Of what a server sends."""
    writer: str | None = None
    """The server that writes the journal, where the journal itself is read from its object store."""

    @property
    def served(self) -> bool:
        """Whether the journal is at a server."""
        return is_served(self.url)

    @property
    def server(self) -> JournalPlace | None:
        """Where changes are asked for: a server; None when this process makes them itself."""
        if self.writer is not None:
            return JournalPlace(self.writer, self.token, self.compression)
        return self if self.served else None


def is_served(url: str) -> bool:
    """Whether a url names a server."""
    return url.lower().startswith(("http://", "https://"))


def place_of_journal(journal: Journal | str, what: str) -> JournalPlace:
    """Where a journal that a program names, or has open, is for tasks. `what` needs one that they can open."""
    if isinstance(journal, str):
        return JournalPlace(absolute_url(journal))
    if isinstance(journal, RemoteJournal):
        token = journal._client.token
        return JournalPlace(journal._client.url, None if token is None else Token(token))
    engine = local(journal, what)._engine
    return JournalPlace(absolute_url(f"{engine.scheme}:{engine.location}"))


def place_of(given: Mapping[str, str]) -> JournalPlace:
    """The journal that options name."""
    url, writer = given["url"], given.get("writer")
    if writer is not None:
        writer = _writer_url(writer, url)
    token, compression = given.get("token"), given.get("compression")
    if not is_served(url):
        if token is not None and writer is None:
            raise ConfigError(f"token is for a server (url or writer is http://…, https://…), not for {url}")
        if compression is not None:
            raise ConfigError(f"compression is for a journal at a server (http://…, https://…), not for {url}")
    match compression:
        case None | "none" | "gzip":
            return JournalPlace(url, None if token is None else Token(token), compression or "none", writer)
        case _:
            raise ConfigError(f'compression is "none" or "gzip", not {compression!r}')


def _writer_url(writer: str, url: str) -> str:
    if is_served(url) or parse_url(url)[0] not in OBJECT_SCHEMES:
        raise ConfigError(
            f"writer names the server that writes a journal in object storage (s3://…), and {shown_url(url)} is none: "
            "the url alone says where to write"
        )
    if not is_served(writer):
        raise ConfigError(f"writer is the url of a server (https://…), not {shown_url(writer)!r}")
    return _server_url(writer)


def absolute_url(url: str) -> str:
    """The url with an absolute path: tasks run in other folders than the program that names the journal."""
    if is_served(url):
        return _server_url(url)
    scheme, path = parse_url(url)
    if scheme == "memory":
        raise ConfigError(
            "Spark reads and writes a journal from other processes, and memory: lives in one; use sqlite: or file:"
        )
    if scheme == "rocksdb":
        raise ConfigError(
            "Spark reads and writes a journal from several processes, and rocksdb: allows one; use sqlite: or file:"
        )
    if path.startswith("//"):  # a bucket
        return f"{scheme}:{path}"
    return f"{scheme}:{os.path.abspath(path)}"  # noqa: PTH100 - Path.absolute keeps '..'


def _server_url(url: str) -> str:
    """The address of a server, always spelled the same; ConfigError when it is none, or has a secret in it."""
    parts = split_url(url)
    if not parts.hostname:
        raise ConfigError(f"{shown_url(url)!r} is no http url: write http://host:port")
    if parts.username or parts.password or parts.query:
        raise ConfigError('a token does not belong into the url: give option("token", …), or PENSTOCK_TOKEN')
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
