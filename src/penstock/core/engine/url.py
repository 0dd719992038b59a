"""Finds the engine that a url names.

Two engines are built in. The others are entry points, whether they are part of penstock or of another package. The name
is the scheme, the value is the class, and an extra in brackets installs the packages that the engine needs. The group
`penstock.engines` lists engines whose store is a path of this machine; `penstock.bucket_engines` lists engines whose
store is `scheme://bucket/path`.

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

import functools
import os
import re
from typing import TYPE_CHECKING, NamedTuple

from penstock.core.durable import as_storage_error
from penstock.core.engine.contract import Durability, Engine, ObjectEngine, ObjectOptions
from penstock.core.names import shown_url
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

# One letter before the colon is a Windows drive; a colon after a slash belongs to a path.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(.*)", re.DOTALL)

ENGINES = "penstock.engines"
"""The group of entry points whose stores are paths of this machine."""
BUCKET_ENGINES = "penstock.bucket_engines"
"""The group of entry points whose stores are `scheme://bucket/path`, which every machine can reach."""
BUILT_IN = ("memory", "sqlite")


@functools.cache
def other_engines() -> dict[str, EntryPoint]:
    """Returns the entry point of every engine that is not built in, by its scheme."""
    from importlib.metadata import entry_points  # the import takes 20 ms, which a program on SQLite need not spend

    return {one.name: one for group in (ENGINES, BUCKET_ENGINES) for one in sorted(entry_points(group=group))}


def schemes() -> list[str]:
    """Returns the schemes of all engines, the built-in ones first."""
    return [*BUILT_IN, *(name for name in other_engines() if name not in BUILT_IN)]


class StoreUrl(NamedTuple):
    """A store's scheme and its path."""

    scheme: str
    path: str

    @property
    def in_bucket(self) -> bool:
        """True when the store is in a bucket, which every machine can reach."""
        return self.scheme not in BUILT_IN and other_engines()[self.scheme].group == BUCKET_ENGINES

    @property
    def in_object_store(self) -> bool:
        """True when the store consists of objects, in a bucket or in a folder, so that it takes `ObjectOptions`."""
        return self.scheme not in BUILT_IN and issubclass(engine_class(self.scheme), ObjectEngine)


def parse_url(url: str | os.PathLike[str]) -> StoreUrl:
    """Returns the scheme and the path of a url: ("sqlite", "shop.db"); a bare path is SQLite's."""
    if isinstance(url, os.PathLike):
        path = os.fspath(url)
        if not isinstance(path, str):
            raise ConfigError(f"a store's path is text, not bytes: {path!r}")
        return StoreUrl("sqlite", _checked(path, url))
    if not isinstance(url, str):
        raise ConfigError(f"a store is named by a url or a path, not by {type(url).__name__}: {url!r}")
    match = _SCHEME.fullmatch(url)
    if match is None:
        return StoreUrl("sqlite", _checked(url, url))
    scheme, path = match[1].lower(), match[2]
    if scheme == "lmdb":
        raise ConfigError(
            f"{shown_url(url)!r} names an LMDB journal, and this version opens those no more: "
            f"move it with penstock 0.1.0, `penstock copy {shown_url(url)} sqlite:shop.db`"
        )
    if scheme not in BUILT_IN and scheme not in other_engines():
        known = ", ".join(f"{name}:" for name in schemes())
        extras = {entry.extras[0]: None for entry in other_engines().values() if entry.extras}
        needs = " or ".join(f'`pip install "penstock[{extra}]"`' for extra in extras)
        raise ConfigError(
            f"{shown_url(url)!r} names no engine: {scheme!r} is not one of {known}. Further engines need {needs}. "
            "For a file whose name has a colon in it, write sqlite:./name"
        )
    if StoreUrl(scheme, path).in_bucket:
        if not path.startswith("//"):
            raise ConfigError(
                f"{shown_url(url)!r} names no bucket: write {scheme}://bucket/{path.strip('/') or 'shop'}"
            )
        return StoreUrl(scheme, _checked(path, url))
    if path.startswith("//"):
        path = path[2:]
        if not path.startswith("/") and scheme != "memory":
            rest = shown_url(url).partition("://")[2]
            host = rest.partition("/")[0]
            raise ConfigError(
                f"{shown_url(url)!r} names a machine ({host!r}), and stores are on this machine: "
                f"write {scheme}:{rest} for a relative path, {scheme}:///{rest} for an absolute one"
            )
    if scheme == "memory":
        return StoreUrl(scheme, path)
    return StoreUrl(scheme, _checked(path, url))


def open_engine(
    url: str | os.PathLike[str],
    *,
    read_only: bool = False,
    durability: Durability = "disk",
    options: ObjectOptions | None = None,
) -> Engine:
    """Opens the store that a url names, and makes a missing store unless `read_only`. The parent folder must exist.

    `options` are for stores in an object store; ConfigError when they are given for another store.
    """
    scheme, path = parse_url(url)
    kind = engine_class(scheme)
    if not read_only and scheme != "memory" and not StoreUrl(scheme, path).in_bucket:
        _check_parent(path)
    if issubclass(kind, ObjectEngine):
        with as_storage_error(f"open {shown_url(str(url))}"):
            return kind(path, read_only=read_only, durability=durability, options=options, scheme=scheme)
    if options is not None and options != ObjectOptions():
        raise ConfigError(
            "linger, timeout, lease, takeover, standby and store_options are for journals in an object store "
            f"(s3:, gs:, az:, slatedb:), not for {scheme}:"
        )
    with as_storage_error(f"open {shown_url(str(url))}"):
        return kind(path, read_only=read_only, durability=durability)


def engine_class(scheme: str) -> type[Engine]:
    """Returns the class of an engine; ConfigError names the extra when a package that it needs is not installed."""
    if scheme == "sqlite":
        from penstock.core.engine.sqlite import SqliteEngine

        return SqliteEngine
    if scheme == "memory":
        from penstock.core.engine.memory import MemoryEngine

        return MemoryEngine
    entry = other_engines()[scheme]
    try:
        found = entry.load()
    except ModuleNotFoundError as error:
        if not entry.extras or (error.name or "").startswith("penstock"):
            raise
        raise ConfigError(
            f"the {scheme} engine needs the package {error.name!r}, which is not installed; install it with\n"
            f'    pip install "penstock[{entry.extras[0]}]"'
        ) from error
    if not isinstance(found, type) or not issubclass(found, Engine):
        raise ConfigError(f"the {scheme} engine is {entry.value!r}, and that is no subclass of penstock's Engine")
    return found


def shown_store(url: str | os.PathLike[str]) -> str:
    """Returns the location of a store for messages: an absolute path, or a url without its secrets."""
    found = parse_url(url)
    if found.scheme == "memory" or found.in_bucket:
        return shown_url(str(url))
    path = os.path.abspath(found.path)  # noqa: PTH100 - a path that is no valid one is the engine's to refuse
    return path if found.scheme == "sqlite" else f"{found.scheme}:{path}"


def _check_parent(path: str) -> None:
    """Raises an error when the parent folder of a store is missing: a mistyped path makes no folders."""
    store = os.path.abspath(path)  # noqa: PTH100 - a path that is no valid one is the engine's to refuse
    parent = os.path.dirname(store)  # noqa: PTH120
    if not os.path.lexists(parent):
        raise ConfigError(f"there is no folder {parent} for the journal {store}: make the folder, or correct the path")


def _checked(path: str, url: object) -> str:
    if not path or path.endswith(":memory:"):
        raise ConfigError(f"{_shown(url)} has no path; for a store that is not kept, write memory:")
    if "\0" in path:
        raise ConfigError(f"{_shown(url)} has a null byte in its path")
    return path


def _shown(url: object) -> str:
    return repr(shown_url(url) if isinstance(url, str) else url)
