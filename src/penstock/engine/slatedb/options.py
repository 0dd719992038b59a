"""What a caller may say about a journal in an object store, beyond its url."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.errors import ConfigError
from penstock.limits import LEASE_SECONDS, LEASE_SECONDS_LEAST, STORE_TIMEOUT
from penstock.names import is_number


@dataclass(frozen=True)
class ObjectOptions:
    """How an object store is used: `penstock.open` and the command line fill it."""

    linger: float = 0.0
    """Seconds for which a commit waits for further callers before its one PUT."""
    timeout: float = STORE_TIMEOUT
    """Seconds an operation waits for the store before it raises."""
    lease: float = LEASE_SECONDS
    """Seconds after which a writer that has not renewed its lease may be replaced."""
    takeover: bool = False
    """Takes the lease from a writer that still holds it."""
    standby: bool = False
    """Waits for as long as another writer holds the lease."""
    hold: float = 0.0
    """Seconds for which a checkpoint keeps the tables a reader has opened from collection; 0: none is made."""
    store: Mapping[str, object] = field(default_factory=dict)
    """The provider's settings (region, endpoint, access_key_id …) where the environment's will not do."""

    def __post_init__(self) -> None:
        for name, least in (("linger", 0.0), ("hold", 0.0), ("timeout", 0.01), ("lease", LEASE_SECONDS_LEAST)):
            value = getattr(self, name)
            if not is_number(value) or not least <= value < math.inf:
                raise ConfigError(f"{name} must be a number of seconds of at least {least:g}, not {value!r}")
        if self.takeover and self.standby:
            raise ConfigError("takeover=True takes the lease at once, standby=True waits for it: say one of them")
        if not isinstance(self.store, Mapping):
            raise ConfigError(f"store_options is a mapping of names to values, not {type(self.store).__name__}")
