"""What a buffer is known by, whatever url and endpoint lead to it: a random name in `<manifest>.id`.

The manifest itself has no room for it: its bytes are another system's too. The first to ask writes the object.
"""

from __future__ import annotations

import re
import secrets
from contextlib import suppress

from penstock.buffer.store import ObjectStore, VersionConflict
from penstock.errors import Corrupt

_ID = re.compile(rb"[0-9a-f]{32}")


def buffer_id(store: ObjectStore, manifest: str) -> str:
    """The stored identity of a manifest's buffer, made if it has none yet."""
    path = f"{manifest}.id"
    while True:
        found = store.get(path)
        if found is not None:
            if _ID.fullmatch(bytes(found)) is None:
                raise Corrupt("a buffer's id is 32 hexadecimal digits; restore the object", file=path)
            return bytes(found).decode()
        with suppress(VersionConflict):  # another drain was first: its id is everyone's
            store.put_if(path, secrets.token_hex(16).encode(), None)
