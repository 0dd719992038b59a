"""What every delivery is, taken from this journal or over HTTP: a message in hand, which a `with` block settles."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from penstock.errors import StaleDelivery

if TYPE_CHECKING:
    from penstock.events import Event


class DeliveryBase:
    """The message's own values, and what leaving a `with` block does: ack, nack with the error, or release."""

    __slots__ = ()

    if TYPE_CHECKING:
        event: Event
        _settled: bool

        def ack(self) -> None: ...
        def nack(self, *, error: str | None = None) -> None: ...
        def release(self) -> None: ...

    @property
    def seq(self) -> int:
        """The message's position in its queue."""
        return self.event.seq

    @property
    def payload(self) -> Any:
        """The message's payload, decoded now; PoisonMessage (with the raw bytes) when it does not decode."""
        return self.event.payload

    @property
    def kind(self) -> str:
        """The message's kind."""
        return self.event.kind

    @property
    def key(self) -> str | None:
        """The message's ordering key."""
        return self.event.key

    @property
    def headers(self) -> Mapping[str, str]:
        """The message's headers."""
        return self.event.headers

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self._settled:
            return
        if error is None:
            self.ack()
            return
        if not isinstance(error, Exception):  # interrupted, not failed
            self.release()
            return
        with suppress(StaleDelivery):  # the caller's own failure matters more than that the lease is lost
            self.nack(error=describe(error))


def describe(error: BaseException) -> str:
    """An exception as the text that a dead letter carries."""
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
