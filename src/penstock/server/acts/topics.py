"""Acts on topics: publish an event, say how long events are kept, remove old ones or all, move and forget consumers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from penstock.errors import ConfigError, UnknownQueue
from penstock.server.acts.act import ActCall, act, counted, happened
from penstock.units import show_duration, show_size


@act("write", "topic", "kind", "payload", "key", "headers", "correlation")
def publish(call: ActCall) -> str:
    name, kind, payload = call.text("topic"), call.text("kind"), call.payload()
    headers = call.payload("headers")
    if headers is not None and not (
        isinstance(headers, dict) and all(isinstance(value, str) for value in headers.values())
    ):
        raise ConfigError('headers are a JSON object of texts, like {"source": "console"}')
    topic = call.journal.topic(name)
    if call.preview:
        there = topic.latest or name in call.journal.topics()
        return "" if there else f"There is no topic {name} yet. Make it with this event?"
    correlation = call.optional("correlation")
    receipt = topic.append(kind, payload, key=call.optional("key"), headers=headers, correlation=correlation)
    return f"{kind} was published as {name} #{receipt.seq:,}"


@act("admin", "topic", "max_age", "max_events", "max_bytes", "by_key")
def retention(call: ActCall) -> str:
    """Sets what a topic keeps; makes the topic when it is not there."""
    topic = call.journal.topic(call.text("topic"))
    age, events, size = call.duration("max_age"), call.whole("max_events"), call.size("max_bytes")
    by_key = call.yes("by_key")
    kept = []
    if age is not None:
        kept.append(f"for {show_duration(age)}")
    if events is not None:
        kept.append(f"the newest {counted(events, 'event')}")
    if size is not None:
        kept.append(f"{show_size(size)} of events")
    if by_key:
        kept.append("the newest event of every key")
    words = ", ".join(kept) or "everything for ever"
    if call.preview:
        if not topic.latest and topic.name not in call.journal.topics():
            return f"Make the topic {topic.name} and keep {words}?"
        going = _going(call, age, events)
        removed = f" {counted(going, 'event')} of {len(topic):,} will be removed in passing." if going else ""
        return f"Keep {words} in {topic.name}?{removed}"
    topic.configure(max_age=age, max_events=events, max_bytes=size, by_key=by_key)
    return f"{topic.name} keeps {words}"


def _going(call: ActCall, age: float | None, events: int | None) -> int:
    """Events that a retention by age and number removes."""
    topic = call.topic()
    stored = len(topic)
    going = 0 if events is None else max(0, stored - events)
    if age is not None:
        through = topic.position_at(datetime.now(UTC) - timedelta(seconds=age))
        going = max(going, min(stored, max(0, through - topic.oldest + 1)))
    return going


@act("admin", "topic", "through", "force")
def compact(call: ActCall) -> str:
    """Removes events through a position."""
    topic = call.topic()
    through = call.whole("through")
    if through is None:
        raise ConfigError("say through which position events are removed")
    through = min(through, topic.latest)
    slowest = min(topic.cursors().values(), default=None)
    if call.preview:
        count = max(0, min(len(topic), through - topic.oldest + 1))
        waits = ""
        if slowest is not None and slowest < through and not call.yes("force"):
            waits = f" The slowest consumer is at {slowest:,}: nothing after it will be removed."
        what = f"{counted(count, 'event')} of {topic.name}, through position {through:,}"
        return f"Remove {what}?{waits} This cannot be undone."
    report = topic.compact(through, force=call.yes("force"))
    return happened(report.removed, "event", f"removed from {topic.name}")


@act("admin", "topic", "force")
def drop_topic(call: ActCall) -> str:
    """Removes a topic and everything that belongs to it."""
    topic = call.topic()
    if call.preview:
        what = counted(len(topic), "event")
        if call.yes("force"):
            try:
                held = f"1 queue with {counted(len(call.journal.queue(topic.name, create=False)), 'message')}"
            except UnknownQueue:
                held = "0 queues"
            what += f", {counted(len(topic.cursors()), 'consumer')} and {held}"
        return f"Drop the topic {topic.name} with {what}? This cannot be undone."
    report = call.journal.drop_topic(topic.name, call.yes("force"))
    return f"the topic {topic.name} was dropped with {counted(report.events, 'event')}"


@act("write", "topic", "consumer", "to", "value", on_system=True)
def seek(call: ActCall) -> str:
    """Moves a consumer, back or ahead."""
    topic, consumer = call.topic(), call.text("consumer")
    latest = topic.latest
    to = call.optional("to") or "position"
    if to == "start":
        position = 0
    elif to == "end":
        position = latest
    elif to == "time":
        position = topic.position_at(call.moment("value"))
    elif to == "event":
        # The event that was picked is the next one the consumer gets.
        position = max(0, (call.whole("value") or 0) - 1)
    elif to == "position":
        given = call.whole("value")
        if given is None:
            raise ConfigError("a position is missing: a whole number, like 1200")
        position = given
    else:
        raise ConfigError(f"a consumer is moved to a position, a time, an event, the start or the end, not {to[:40]!r}")
    if position > latest:
        raise ConfigError(f"{topic.name} ends at {latest:,}: {position:,} lies beyond it")
    now = topic.cursor(consumer)
    if call.preview:
        if now is None:
            return f"{consumer} is new to {topic.name}. Let it begin at position {position:,}?"
        again, skipped = max(0, now - position), max(0, position - now)
        effect = "nothing changes"
        if again:
            effect = f"it will get {counted(again, 'event')} again"
        elif skipped:
            effect = f"it will skip {counted(skipped, 'event')}"
        return f"Move {consumer} from {now:,} to {position:,} of {topic.name}: {effect}?"
    topic._move_cursor(consumer, position, seek=True)
    return f"{consumer} is at {position:,}; {counted(topic.lag(consumer), 'event')} ahead"


@act("write", "topic", "consumer", on_system=True)
def forget(call: ActCall) -> str:
    """Forgets a consumer's position."""
    topic, consumer = call.topic(), call.text("consumer")
    if call.preview:
        now = topic.cursor(consumer)
        if now is None:
            raise ConfigError(f"{topic.name} has no consumer {consumer[:80]!r}")
        anew = f"It would begin anew, with {counted(len(topic), 'event')}."
        return f"Forget that {consumer} is at {now:,} of {topic.name}? {anew}"
    topic.forget(consumer)
    return f"{consumer} was forgotten"
