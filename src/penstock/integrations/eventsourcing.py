"""A journal as the persistence module of the library eventsourcing.

    PERSISTENCE_MODULE=penstock.integrations.eventsourcing
    PENSTOCK_URL=/var/lib/app/shop.db

A stored event is an event of the journal: its kind is the stored event's topic, its key is the originator's id, its
payload is the state, and its header `version` is the originator's version. Its position is the notification's id, so
ids have no gaps, and a later commit never has a smaller id. Every insert is one batch. It expects that each
originator's newest event is the event that was read. So of two writers of the same version, the second gets
IntegrityError. A tracking record is an event in a separate topic, in the same batch, with the upstream application as
its key. It follows the same rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar
from uuid import UUID

import penstock
from penstock.integrations import needed_for

with needed_for("eventsourcing"):
    from eventsourcing.persistence import (
        AggregateRecorder,
        ApplicationRecorder,
        InfrastructureFactory,
        IntegrityError,
        Notification,
        ProcessRecorder,
        StoredEvent,
        Subscription,
        Tracking,
        TrackingRecorder,
    )
    from eventsourcing.utils import Environment, resolve_topic

VERSION = "version"
"""The header with the originator's version."""
TRACKED = "tracked"
"""The kind of an event that tracks an upstream application."""


R = TypeVar("R", bound="PenstockRecorder")


class PenstockRecorder:
    """The base of every recorder in this module: a topic of events, and beside it a topic of tracking records."""

    def __init__(self, journal: penstock.Journal, topic: str = "events", *, text_ids: bool = False) -> None:
        """With `text_ids`, originators' ids are text and not UUIDs."""
        self.journal = journal
        self.topic = journal.topic(topic)
        self.tracking = journal.topic(f"{topic}.tracking")
        self._text_ids = text_ids

    def _insert(self, outbox: penstock.Outbox) -> list[int]:
        """Appends the staged events, and returns their positions."""
        try:
            receipts = outbox.flush()
        except penstock.errors.Conflict as error:
            raise IntegrityError(f"another writer was faster: {error}") from error
        return [receipt.seq for receipt in receipts if receipt.topic == self.topic.name]

    def _stage_events(self, outbox: penstock.Outbox, stored_events: Sequence[StoredEvent]) -> None:
        newest: dict[str, tuple[int, int | None]] = {}
        """The position of each originator's newest stored event, and its highest version so far."""
        for one in stored_events:
            key = str(one.originator_id)
            if key not in newest:
                found = next(self.topic.read(key=key, reverse=True, limit=1), None)
                newest[key] = (0, None) if found is None else (found.seq, int(found.headers[VERSION]))
            position, version = newest[key]
            if version is not None and one.originator_version <= version:
                raise IntegrityError(
                    f"originator {key} is at version {version}: version {one.originator_version} cannot be recorded"
                )
            newest[key] = position, one.originator_version
            headers = {VERSION: str(one.originator_version)}
            outbox.stage(self.topic, one.topic, one.state, key=key, headers=headers, expect=position)

    def _stage_tracking(self, outbox: penstock.Outbox, tracking: Tracking) -> None:
        """Adds a tracking record to an outbox's batch. Views that keep their own state in topics can use this too."""
        found = self._tracked(tracking.application_name)
        if found is not None and tracking.notification_id <= found.payload:
            raise IntegrityError(
                f"{tracking.application_name!r} is tracked through {found.payload}: "
                f"{tracking.notification_id} cannot be recorded"
            )
        if found is None:
            self.tracking.configure(by_key=True)  # only the newest event of each application counts
        position = 0 if found is None else found.seq
        name = tracking.application_name
        outbox.stage(self.tracking, TRACKED, tracking.notification_id, key=name, expect=position)

    def _tracked(self, application_name: str) -> penstock.Event[int] | None:
        """Returns the newest event that tracks an application."""
        return next(self.tracking.read(key=application_name, reverse=True, limit=1), None)

    def _notification(self, event: penstock.Event[bytes]) -> Notification:
        return Notification(
            id=event.seq,
            originator_id=event.key if self._text_ids else UUID(event.key),
            originator_version=int(event.headers[VERSION]),
            topic=event.kind,
            state=event.payload,
        )


class PenstockAggregateRecorder(PenstockRecorder, AggregateRecorder):
    """A recorder of the events of aggregates, or of their snapshots."""

    def insert_events(self, stored_events: Sequence[StoredEvent], **kwargs: Any) -> Sequence[int] | None:
        """Records events, all or none.

        Raises IntegrityError when an originator already has the same version, or a higher version.
        """
        outbox = self.journal.outbox()
        self._stage_events(outbox, stored_events)
        self._insert(outbox)
        return None

    def select_events(
        self,
        originator_id: UUID | str,
        *,
        gt: int | None = None,
        lte: int | None = None,
        desc: bool = False,
        limit: int | None = None,
    ) -> Sequence[StoredEvent]:
        """Returns the events of an originator with versions above `gt` and through `lte`, at most `limit` events."""
        # Versions grow with positions. The events after a snapshot are read from the newest event back to the snapshot.
        backwards = desc or gt is not None
        found: list[StoredEvent] = []
        for event in self.topic.read(key=str(originator_id), reverse=backwards):
            version = int(event.headers[VERSION])
            if backwards and gt is not None and version <= gt:
                break
            if lte is not None and version > lte:
                if not backwards:
                    break
                continue
            found.append(StoredEvent(originator_id, version, event.kind, event.payload))
            if len(found) == limit and backwards == desc:
                break
        return found if backwards == desc else found[::-1][:limit]


class PenstockApplicationRecorder(PenstockAggregateRecorder, ApplicationRecorder):
    """A recorder of the events of aggregates, in the order in which the application recorded them."""

    def insert_events(self, stored_events: Sequence[StoredEvent], **kwargs: Any) -> Sequence[int] | None:
        """Records events, all or none, and returns their positions."""
        outbox = self.journal.outbox()
        self._stage_events(outbox, stored_events)
        return self._insert(outbox)

    def select_notifications(
        self,
        start: int | None,
        limit: int,
        stop: int | None = None,
        topics: Sequence[str] = (),
        *,
        inclusive_of_start: bool = True,
    ) -> Sequence[Notification]:
        """Returns the events from a position (or after it) through another position, of some topics or of all
        topics.
        """
        after = max((start or 0) - inclusive_of_start, 0)
        return list(map(self._notification, self.topic.read(after, limit, through=stop, kind=topics or None)))

    def max_notification_id(self) -> int | None:
        """Returns the newest event's position; None when there is no event."""
        return self.topic.latest or None

    def subscribe(self, gt: int | None = None, topics: Sequence[str] = ()) -> PenstockSubscription:
        """Follows the events after a position, including events that other processes record."""
        return PenstockSubscription(self, gt, topics)


class PenstockSubscription(Subscription[PenstockApplicationRecorder]):
    """A subscription that yields an application's events as they are recorded."""

    def __init__(self, recorder: PenstockApplicationRecorder, gt: int | None, topics: Sequence[str]) -> None:
        super().__init__(recorder, gt, topics)
        self._events = recorder.topic.subscribe(gt or 0, kind=topics or None)

    def stop(self) -> None:
        """Ends the subscription. A thread that waits in it gets no more events."""
        super().stop()
        self._events.close()

    def __next__(self) -> Notification:
        found = self._events.next()
        if found is None:
            raise StopIteration
        return self._recorder._notification(found)


class PenstockTrackingRecorder(PenstockRecorder, TrackingRecorder):
    """A recorder of the positions through which upstream applications were processed.

    A subclass of it can also store a view.
    """

    def insert_tracking(self, tracking: Tracking) -> None:
        """Records the position through which an application was processed.

        Raises IntegrityError when the position is not higher than before.
        """
        outbox = self.journal.outbox()
        self._stage_tracking(outbox, tracking)
        self._insert(outbox)

    def max_tracking_id(self, application_name: str) -> int | None:
        """Returns the position through which an application was processed; None when it was never processed."""
        found = self._tracked(application_name)
        return None if found is None else found.payload


class PenstockProcessRecorder(PenstockTrackingRecorder, PenstockApplicationRecorder, ProcessRecorder):
    """A recorder that stores, in one batch, events and the position of the upstream event that they follow from."""

    def insert_events(self, stored_events: Sequence[StoredEvent], **kwargs: Any) -> Sequence[int] | None:
        """Records events together with `tracking`, all or none."""
        outbox = self.journal.outbox()
        self._stage_events(outbox, stored_events)
        tracking = kwargs.get("tracking")
        if tracking is not None:
            self._stage_tracking(outbox, tracking)
        return self._insert(outbox)


class PenstockFactory(InfrastructureFactory[PenstockTrackingRecorder]):
    """Opens the journal that PENSTOCK_URL names, and makes recorders on it.

    The names of an application's topics begin with its name, so several applications can share a journal.
    """

    PENSTOCK_URL = "PENSTOCK_URL"
    ORIGINATOR_ID_TYPE = "ORIGINATOR_ID_TYPE"

    def __init__(self, env: Environment | dict[str, str] | None) -> None:
        super().__init__(env)
        id_type = self.env.get(self.ORIGINATOR_ID_TYPE, "uuid").lower()
        if id_type not in ("uuid", "text"):
            raise penstock.errors.ConfigError(f"{self.ORIGINATOR_ID_TYPE} is uuid or text, not {id_type!r}")
        self._text_ids = id_type == "text"
        self.journal = penstock.open(self.env.get(self.PENSTOCK_URL))

    def aggregate_recorder(self, purpose: str = "events") -> AggregateRecorder:
        """Returns a recorder of snapshots, which have a topic of their own."""
        return self._made(PenstockAggregateRecorder, purpose)

    def application_recorder(self) -> ApplicationRecorder:
        """Returns a recorder of the application's events."""
        return self._named(self.APPLICATION_RECORDER_TOPIC, PenstockApplicationRecorder)

    def tracking_recorder(
        self, tracking_recorder_class: type[PenstockTrackingRecorder] | None = None
    ) -> PenstockTrackingRecorder:
        """Returns a recorder for a projection's view."""
        if tracking_recorder_class is not None:
            return self._made(tracking_recorder_class)
        return self._named(self.TRACKING_RECORDER_TOPIC, PenstockTrackingRecorder)

    def process_recorder(self) -> ProcessRecorder:
        """Returns a recorder of events that follow from events of other applications."""
        return self._named(self.PROCESS_RECORDER_TOPIC, PenstockProcessRecorder)

    def close(self) -> None:
        """Closes the journal."""
        self.journal.close()

    def _named(self, variable: str, usual: type[R]) -> R:
        """Returns a recorder of the class that an environment variable names."""
        named = self.env.get(variable)
        return self._made(resolve_topic(named) if named else usual)

    def _made(self, recorder_class: type[R], purpose: str = "events") -> R:
        name = self.env.name.lower()
        return recorder_class(self.journal, f"{name}.{purpose}" if name else purpose, text_ids=self._text_ids)
