"""Which journal Spark works with: its url, made absolute, and how a server is reached."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from penstock.engine.url import parse_url
from penstock.errors import ConfigError
from penstock.names import shown_url


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

    @property
    def served(self) -> bool:
        """Whether the journal is at a server."""
        return is_served(self.url)


def is_served(url: str) -> bool:
    """Whether a url names a server."""
    return url.lower().startswith(("http://", "https://"))


def place_of(given: Mapping[str, str]) -> JournalPlace:
    """The journal that options name."""
    url, token, compression = given["url"], given.get("token"), given.get("compression")
    if not is_served(url):
        for name in ("token", "compression"):
            if name in given:
                raise ConfigError(f"{name} is for a journal at a server (http://…, https://…), not for {url}")
        return JournalPlace(url)
    match compression:
        case None | "none" | "gzip":
            return JournalPlace(url, None if token is None else Token(token), compression or "none")
        case _:
            raise ConfigError(f'compression is "none" or "gzip", not {compression!r}')


def absolute_url(url: str) -> str:
    """The url with an absolute path: tasks run in other folders than the program that names the journal."""
    if is_served(url):
        return _server_url(url)
    scheme, path = parse_url(url)
    if scheme == "memory":
        raise ConfigError(
            "Spark reads and writes a journal from other processes, and memory: lives in one; use sqlite:, lmdb:, file:"
        )
    if scheme == "rocksdb":
        raise ConfigError(
            "Spark reads and writes a journal from several processes, and rocksdb: allows one; "
            "use sqlite:, lmdb: or file:"
        )
    if path.startswith("//"):  # a bucket
        return f"{scheme}:{path}"
    return f"{scheme}:{os.path.abspath(path)}"  # noqa: PTH100 - Path.absolute keeps '..'


def _server_url(url: str) -> str:
    """The address of a server, always spelled the same; ConfigError when it is none, or has a secret in it."""
    parts = urlsplit(url)
    if not parts.hostname:
        raise ConfigError(f"{shown_url(url)!r} is no http url: write http://host:port")
    if parts.username or parts.password or parts.query:
        raise ConfigError('a token does not belong into the url: give option("token", …), or PENSTOCK_TOKEN')
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
