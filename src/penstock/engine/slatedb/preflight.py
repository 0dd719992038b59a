"""Finding out whether a store can hold a journal before SlateDB asks it: SlateDB would ask again for ever."""

from __future__ import annotations

from penstock.buffer.store.probe import probe_conditional_puts
from penstock.engine.slatedb.place import Place
from penstock.errors import ConfigError, StorageError


def check_store(place: Place, path: str, *, writing: bool) -> None:
    """Raises what is wrong with the bucket, the credentials or the endpoint; proves conditional puts when `writing`."""
    if place.folder is not None:
        return
    try:
        place.objects.read(path)
        if writing:
            probe_conditional_puts(place.objects, path)
    except StorageError as error:
        if error.retryable:
            raise
        raise ConfigError(f"no journal can be opened at {place.url}: {error}") from error
