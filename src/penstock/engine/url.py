"""Finds the engine that a url names.

shop.db  or  a Path        sqlite in that file
sqlite:shop.db             the same, said in full
sqlite:///var/shop.db      an absolute path (also `sqlite:/var/shop.db`)
rocksdb:shop               a folder
file:shop                  a folder with the append-only file in it
s3://bucket/shop           objects in a bucket; also gs://bucket/shop and az://container/shop
slatedb:shop               the same in a folder, for tests and development
memory:                    a new store in this process
memory:name                the store of that name in this process, as long as the process lives
"""

from __future__ import annotations

import importlib
import os
import re
from typing import TYPE_CHECKING

from penstock.engine.contract import Durability, Engine
from penstock.errors import ConfigError
from penstock.names import shown_url

if TYPE_CHECKING:
    from penstock.engine.slatedb.database import ObjectOptions

# One letter before the colon is a Windows drive; a colon after a slash belongs to a path.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(.*)", re.DOTALL)

ENGINES: dict[str, tuple[str, str, str | None]] = {
    "memory": ("penstock.engine.memory", "MemoryEngine", None),
    "sqlite": ("penstock.engine.sqlite", "SqliteEngine", None),
    "rocksdb": ("penstock.engine.rocksdb", "RocksdbEngine", "rocksdb"),
    "file": ("penstock.engine.file", "FileEngine", None),
    "s3": ("penstock.engine.slatedb.engine", "SlatedbEngine", "object"),
    "gs": ("penstock.engine.slatedb.engine", "SlatedbEngine", "object"),
    "az": ("penstock.engine.slatedb.engine", "SlatedbEngine", "object"),
    "slatedb": ("penstock.engine.slatedb.engine", "SlatedbEngine", "object"),
}
"""Scheme → the module and class of its engine, and the extra that brings its package."""
OBJECT_SCHEMES = ("s3", "gs", "az", "slatedb")
"""Those that keep a journal in an object store, and take `ObjectOptions`."""


def parse_url(url: str | os.PathLike[str]) -> tuple[str, str]:
    """The scheme and the path of a url: ("sqlite", "shop.db"); a bare path is sqlite's."""
    if isinstance(url, os.PathLike):
        path = os.fspath(url)
        if not isinstance(path, str):
            raise ConfigError(f"a store's path is text, not bytes: {path!r}")
        return "sqlite", _checked(path, url)
    if not isinstance(url, str):
        raise ConfigError(f"a store is named by a url or a path, not by {type(url).__name__}: {url!r}")
    match = _SCHEME.fullmatch(url)
    if match is None:
        return "sqlite", _checked(url, url)
    scheme, path = match[1].lower(), match[2]
    if scheme == "lmdb":
        raise ConfigError(
            f"{shown_url(url)!r} names an LMDB journal, and this version opens those no more: "
            f"move it with penstock 0.1.0, `penstock copy {shown_url(url)} sqlite:shop.db`"
        )
    if scheme not in ENGINES:
        known = ", ".join(f"{name}:" for name in ENGINES)
        raise ConfigError(
            f"{shown_url(url)!r} names no engine: {scheme!r} is not one of {known}. "
            'rocksdb: needs `pip install "penstock[rocksdb]"`, '
            's3:, gs:, az: and slatedb: need `pip install "penstock[object]"`. '
            "For a file whose name has a colon in it, write sqlite:./name"
        )
    if scheme in OBJECT_SCHEMES and scheme != "slatedb":
        if not path.startswith("//"):
            raise ConfigError(
                f"{shown_url(url)!r} names no bucket: write {scheme}://bucket/{path.strip('/') or 'shop'}"
            )
        return scheme, _checked(path, url)
    if path.startswith("//"):
        path = path[2:]
        if not path.startswith("/") and scheme != "memory":
            rest = shown_url(url).partition("://")[2]
            host = rest.partition("/")[0]
            raise ConfigError(
                f"{shown_url(url)!r} names a machine ({host!r}), and stores lie on this one: "
                f"write {scheme}:{rest} for a relative path, {scheme}:///{rest} for an absolute one"
            )
    if scheme == "memory":
        return scheme, path
    return scheme, _checked(path, url)


def open_engine(
    url: str | os.PathLike[str],
    *,
    read_only: bool = False,
    durability: Durability = "disk",
    options: ObjectOptions | None = None,
) -> Engine:
    """Opens the store a url names, making it (and its parent folders) unless `read_only`.

    `options` are for stores in an object store; ConfigError when they are given for another one.
    """
    scheme, path = parse_url(url)
    kind = _engine_class(scheme)
    if scheme in OBJECT_SCHEMES:
        from penstock.engine.slatedb.engine import SlatedbEngine

        return SlatedbEngine(path, read_only=read_only, durability=durability, options=options, scheme=scheme)
    if options is not None and options != type(options)():
        raise ConfigError(
            f"linger, timeout, lease, takeover, standby and store_options are for journals in an object store "
            f"({', '.join(f'{name}:' for name in OBJECT_SCHEMES)}), not for {scheme}:"
        )
    return kind(path, read_only=read_only, durability=durability)


def _engine_class(scheme: str) -> type[Engine]:
    module, name, extra = ENGINES[scheme]
    try:
        found = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if extra is None or (error.name or "").startswith("penstock"):
            raise
        raise ConfigError(
            f"the {scheme} engine needs the package {error.name!r}, which is not installed; install it with\n"
            f'    pip install "penstock[{extra}]"'
        ) from error
    assert isinstance(found, type) and issubclass(found, Engine)
    return found


def _checked(path: str, url: object) -> str:
    if not path or path.endswith(":memory:"):
        raise ConfigError(f"{_shown(url)} has no path; for a store that is not kept, write memory:")
    if "\0" in path:
        raise ConfigError(f"{_shown(url)} has a null byte in its path")
    return path


def _shown(url: object) -> str:
    return repr(shown_url(url) if isinstance(url, str) else url)
