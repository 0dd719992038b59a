"""A topic's settings: checked, compared with each other, and changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from penstock.clock import seconds
from penstock.documents.decoding import nearest
from penstock.errors import ConfigError
from penstock.journal.catalog import Settings, TopicRecord, mark_aged, save_record
from penstock.journal.commit import Commit, change_window
from penstock.names import check_limit


def checked_settings(changes: Mapping[str, Any]) -> dict[str, object]:
    """Changes that each can be made; ConfigError names the first that cannot."""
    unknown = sorted(set(changes) - set(Settings.__struct_fields__))
    if unknown:
        raise ConfigError(f"a topic has no setting {unknown[0]!r}{nearest(unknown[0], Settings.__struct_fields__)}")
    checked = dict(changes)
    for name in ("max_age", "dedup_window"):
        if checked.get(name) is not None:
            checked[name] = seconds(checked[name], name)
    for name in ("max_events", "max_bytes"):
        check_limit(checked.get(name), name, 1)
    for name in ("by_key", "verified", "indexed"):
        if name in checked and not isinstance(checked[name], bool):
            raise ConfigError(f"{name} must be True or False, not {checked[name]!r}")
    return checked


def change_settings(commit: Commit, topic: str, changes: Mapping[str, object]) -> Settings:
    """Makes checked changes to a topic's settings, and whatever follows from them; returns the settings then."""
    commit.flush()  # what others of this commit have appended so far is written under the settings of then
    head = commit.ensure(topic)
    settings = msgspec.structs.replace(head.settings, **changes)
    _check_together(topic, head.settings, settings)
    if settings != head.settings:
        save_record(commit.tx, topic, TopicRecord(head.topic_id, settings))
        mark_aged(commit.tx, topic, settings)
        now_ms = max(commit.now_ms, head.recorded_ms)
        change_window(commit.tx, head.topic_id, head.settings.dedup_window, settings.dedup_window, now_ms)
        head.settings = settings
    return settings


def _check_together(topic: str, before: Settings, settings: Settings) -> None:
    """Refuses settings that would make each other worthless."""
    if settings.verified and settings.by_key:
        raise ConfigError(f"topic {topic!r} cannot be verified and be compacted by key: verifying needs every event")
    if before.verified and not settings.verified:
        raise ConfigError(f"topic {topic!r} is verified for good: events without a hash between others prove nothing")
