"""Repairing a queue: claim, discard, run now, purge, drop, redrive, move, replace.

The messages of a caller's `where` are found in a snapshot, in the caller's thread. The commit then takes the messages
that are still there. A message keeps its key, its delay, its priority and its own retry budget. Many messages are moved
in steps, so that no commit holds other writers up for long; each message is in exactly one queue all the time.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from penstock.core.consuming.delivery import Delivery
from penstock.core.events import Event, GivenUpEvent, Receipt
from penstock.core.journal.commit import Commit
from penstock.core.journal.upkeep.retention import compact
from penstock.core.journal.writer import WriteRequest
from penstock.core.model.push import PushOptions
from penstock.core.model.reply import keep_reply
from penstock.core.model.take import TakeRequest
from penstock.core.queue.dead_letters import GROUP, former_headers, letter, origin, original_headers, original_options
from penstock.core.queue.inspect import View, open_view
from penstock.core.queue.operations.groups import group_for
from penstock.core.queue.operations.notes import carry_steps, put_steps, read_steps
from penstock.core.queue.operations.push import (
    DeliveryOptions,
    as_batch,
    forget_debounced,
    push,
    refuse_keys,
    refuse_overflow,
)
from penstock.core.queue.operations.settle import end_lapsed, expire_messages, over_budget
from penstock.core.queue.operations.take import STEP, TakeOperation, absorb, wake_due
from penstock.core.queue.results import DISCARDED, answer_removed, answer_taken, note_moved
from penstock.core.queue.state import keys
from penstock.core.queue.state.blocks import copy_columns
from penstock.core.queue.state.cache import WORK, QueueState
from penstock.core.queue.state.feed import Change
from penstock.core.queue.state.group import Group
from penstock.core.queue.state.records import (
    FAILED,
    TAKEN,
    UNTOUCHED,
    WAITING,
    FailureTrail,
    GroupRecord,
    MessageRow,
    read_special,
)
from penstock.core.queue.upkeep import settled_through
from penstock.errors import ConfigError, QueueFull

if TYPE_CHECKING:
    from penstock.core.queue.queue import LocalQueue


# ── claim ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def claim(queue: LocalQueue, wanted: TakeRequest, idle_ms: int) -> list[Delivery]:
    queue.change(group_for, wanted.group)  # so that the group exists, and its times follow the clock
    chosen, left = [], wanted.limit
    with open_view(queue) as view:
        for held in view.leased(wanted.group):
            lease, index = held.lease, held.index
            if view.now - lease.touched_ms(index) >= idle_ms:
                chosen.append((held.lease_id, index))
                left -= not over_budget(view.snap, view.state, lease.message(index))
                if not left:
                    break
    return queue.change(_claim, queue, wanted, idle_ms, chosen) if chosen else []


def _claim(
    commit: Commit,
    state: QueueState,
    queue: LocalQueue,
    wanted: TakeRequest,
    idle_ms: int,
    chosen: list[tuple[int, int]],
) -> list[Delivery]:
    group = group_for(commit, state, wanted.group)
    if state.record.is_paused(wanted.group):
        return []
    now, operation = commit.now_ms, TakeOperation(commit, group, wanted, queue)
    for lease_id, index in chosen:
        lease = group.lease(commit.tx, lease_id)
        if lease is not None and lease.holds(index) and now - lease.touched_ms(index) >= idle_ms:
            event = state.blocks.event(commit.tx, lease.seq(index))
            if event is None or over_budget(commit.tx, state, lease.message(index)):
                expire_messages(commit, group, lease_id, lease, [index])
                continue
            (message,) = group.take_back(commit, lease_id, lease, [index], Change("released", "claimed"))
            tried = group.ended_attempts(commit, lease, message, now, "claimed", None)
            group.save_trail(commit, message, FailureTrail(tried))
            operation.messages.append((message, event))
    operation.lease_messages()
    return operation.deliveries


# ── discarding ─────────────────────────────────────────────────────────────────────────────────────────────────────
def still_free(commit: Commit, state: QueueState, seqs: list[int]) -> list[int]:
    """Returns the positions whose messages are neither settled nor failed nor in flight."""
    end_lapsed(commit, state, seqs)
    latest = state.latest(commit)
    return [seq for seq in dict.fromkeys(seqs) if seq <= latest and state.is_free(commit.tx, seq)]


def discard_many(queue: LocalQueue, seqs: list[int]) -> int:
    def apply(commit: Commit, state: QueueState) -> int:
        latest = state.latest(commit)
        overdue = state.overdue_through(commit.tx, commit.now_ms)
        end_lapsed(commit, state, seqs)
        gone = 0
        for seq in dict.fromkeys(seqs):
            found = state.find_free(commit.tx, seq) if 0 < seq <= latest else []
            if found:
                # A message past its ttl is already gone for every count.
                gone += seq > overdue or any(message.state == FAILED for _, message in found)
                answer_taken(commit, state, [seq], DISCARDED)
                for group, message in found:
                    group.remove(commit, message, Change("discarded"))
                state.forget_letter(commit, seq)
        return gone

    count = queue.change(apply) if seqs else 0
    queue.note_settled(count)
    return count


# ── emptying ───────────────────────────────────────────────────────────────────────────────────────────────────────
def purge(queue: LocalQueue) -> int:
    with open_view(queue) as view:  # the messages of many groups are counted here, where no writer waits
        count = _count(view) if view.state.fanout else None
    count = queue.core.writer.run(WriteRequest(purge_in, 0, (queue, count)))
    if count:
        queue.core.writer.reclaim()
        queue.note_settled(count)
    return count


def purge_in(commit: Commit, queue: LocalQueue, count: int | None = None) -> int:
    """Removes all messages inside a commit; `count` is their number, if known.

    Their rows are cleared later in the background, because from now on no group uses them.
    """
    state = queue.cache.state(commit, queue.name)
    commit.flush()
    latest = commit.latest(queue.name)
    count = _count(View(commit.tx, state, commit.now_ms)) if count is None else count
    answer_removed(commit, state, latest)
    if settled_through(commit.tx, state) < latest:
        state.tell_purged(commit, latest)
    groups = state.all_groups(commit.tx)
    state.record.purges = (state.record.purges + 1) % keys.MOST_PURGES
    state.save(commit)
    for group in groups:
        commit.tx.delete_range(*keys.group_range(state.topic, group.group_id, state.record.purges))
        commit.tx.delete_range(*keys.flow_rows(state.topic, group.group_id, b"t"))
        old = group.record
        record = GroupRecord(latest, latest, next_lease=old.next_lease, until=old.until, seen_ms=old.seen_ms)
        fresh = Group(state, group.group_id, group.name, record)
        state.adopt(fresh)
        commit.touch(fresh)
    if not state.record.over_log:
        compact(commit, queue.name, latest, queue.core.holds)
    commit.touched.setdefault(queue.name, 0)
    return count


def _count(view: View) -> int:
    """Returns the number of messages that some group has not settled, including failed messages."""
    groups = view.state.all_groups(view.snap)
    if len(groups) == 1:
        left = groups[0].unsettled(view.latest) - groups[0].overdue(view.snap, view.overdue)
        left -= view.lapsed(groups[0]).count(None)
        return left + groups[0].record.failed
    return len({entry.seq for entry in view.walk()})


def drop(queue: LocalQueue) -> int:
    """Empties a queue in small steps, and then removes it with messages that arrived meanwhile."""
    purged = purge(queue)
    queue.registry.upkeep.remove_settled(queue.name)

    def apply(commit: Commit) -> int:
        count = purge_in(commit, queue)
        commit.flush()
        state = queue.cache.state(commit, queue.name)
        commit.tx.delete_range(*keys.groups_range(state.topic))
        commit.tx.delete_range(*keys.shared_range(state.topic))
        commit.tx.delete_range(*keys.flow_of_queue(state.topic))
        # Cursors may keep the topic's history: old messages are not delivered again if the queue is made anew.
        left = keys.pack_dropped(commit.latest(queue.name), state.record.over_log)
        commit.tx.put(keys.dropped_key(state.topic), left)
        commit.tx.delete(keys.queue_key(queue.name))
        queue.cache.drop(queue.name)
        return count

    return purged + queue.core.writer.run(WriteRequest(apply))


# ── running now ───────────────────────────────────────────────────────────────────────────────────────────────────────
def run_now(commit: Commit, queue: QueueState, seqs: list[int], name: str | None) -> int:
    """Makes delayed messages ready, for one group or for all; returns how many were delayed."""
    latest = queue.latest(commit)
    groups = [group for group in queue.all_groups(commit.tx) if name is None or not queue.fanout or group.name == name]
    count = 0
    end_lapsed(commit, queue, seqs)
    for group in groups if queue.record.policy.debounce is not None else ():
        _sort_in_all(commit, group, latest)
    for seq in dict.fromkeys(seqs):
        if seq <= latest:
            count += max([_make_ready(commit, group, seq) for group in groups], default=False)
    return count


def _make_ready(commit: Commit, group: Group, seq: int) -> bool:
    queue = group.queue
    message = group.find(commit.tx, seq)
    if message is None or message.state not in (WAITING, UNTOUCHED):
        return False
    if message.state == UNTOUCHED:
        special = queue.special(commit.tx, group, seq)
        if special is None or special.due <= commit.now_ms:
            return False
        message = special.row(seq)
    if message.key is not None and queue.record.policy.debounce is not None:
        forget_debounced(commit, queue, message.key, seq)
    group.requeue(commit, message)
    return True


def _sort_in_all(commit: Commit, group: Group, latest: int) -> None:
    """Gives every waiting message a row: older messages of a key go before a message that runs now."""
    queue = group.queue
    while wake_due(commit, group, STEP):
        pass
    while queue.traits.special > group.record.absorbed and absorb(commit, group, latest, STEP):
        pass


# ── moving ────────────────────────────────────────────────────────────────────────────────────────────────────────────
MOVE_STEP = 1024
"""The most messages in one commit of a move or a redrive."""
PACE = 0.2
"""The seconds between two steps of a redrive with a rate."""
Where = Callable[[Event], bool]
Step = Callable[[Commit, list[int]], int]
Revived = Callable[[Mapping[str, str]], dict[str, str]]


def _run(queue: LocalQueue, wanted: Mapping[str, int], steps: Iterable[tuple[Step, list[int]]]) -> int:
    """Runs steps that move messages, some at a time, each step in a commit.

    Refuses all of them when a target queue has no room for the `wanted` number of messages.
    """
    parts = [(step, seqs[at : at + MOVE_STEP]) for step, seqs in steps for at in range(0, len(seqs), MOVE_STEP)]
    if len(parts) > 1:
        queue.core.writer.run(WriteRequest(lambda commit: _refuse_overflow(commit, queue, wanted)))
    moved = 0
    try:
        for step, part in parts:
            moved += queue.core.writer.run(WriteRequest(step, 0, (part,)))
    except QueueFull as error:
        if not moved:
            raise
        raise QueueFull(f"{error}. {moved} messages went before it was full") from error
    return moved


def send_at_rate(
    send: Callable[[int], int], count: int, rate: float, stopping: Callable[[], bool] = lambda: False
) -> int:
    """Sends `count` messages at `rate` a second.

    `send` gets the number that it may send, and returns the number that it sent. A message that fails again goes behind
    the waiting messages, so `count` ends the loop.
    """
    begun, sent = time.monotonic(), 0
    while sent < count and not stopping():
        due = min(count - sent, int((time.monotonic() - begun) * rate) + 1 - sent)
        done = send(due) if due > 0 else 0
        sent += done
        if done < due:
            break
        time.sleep(min(PACE, (count - sent) / rate))
    return sent


def _refuse_overflow(commit: Commit, queue: LocalQueue, wanted: Mapping[str, int]) -> None:
    for name, count in wanted.items():
        target = queue.cache.find(commit, name)
        if target is not None and target.policy.max_size is not None:
            refuse_overflow(commit, target, count, target.policy.max_size)


class LettersLeft(msgspec.Struct, frozen=True):
    """Messages that a redrive could not send back."""

    queue: str
    """The queue that the messages come from."""
    group: str | None
    """The group that gave the messages up, if this is the reason."""
    count: int
    reason: str


class Redriven(int):
    """The number of messages that a redrive sent back; `left` lists messages that could not be sent, with the
    reason.
    """

    left: tuple[LettersLeft, ...]

    def __new__(cls, count: int, left: tuple[LettersLeft, ...] = ()) -> Redriven:
        made = super().__new__(cls, count)
        made.left = left
        return made


# ── redrive ────────────────────────────────────────────────────────────────────────────────────────────────────────
def redrive(
    queue: LocalQueue, to: LocalQueue | None, limit: int | None, where: Where | None, dry_run: bool
) -> Redriven:
    chosen = _Redrive(open_view, queue, to, limit, where)
    count = chosen.count if dry_run else _run(queue, chosen.wanted, chosen.steps)
    return Redriven(count, chosen.report())


def redrive_in(
    commit: Commit, queue: LocalQueue, to: LocalQueue | None, limit: int | None, where: Where | None
) -> Redriven:
    """Does its work inside a commit that has written all earlier changes."""
    chosen = _Redrive(_within(commit), queue, to, limit, where)
    return Redriven(sum([step(commit, seqs) for step, seqs in chosen.steps]), chosen.report())


Viewing = Callable[["LocalQueue"], AbstractContextManager[View]]


def _within(commit: Commit) -> Viewing:
    """Returns views of queues inside a commit under way."""

    def view(queue: LocalQueue) -> AbstractContextManager[View]:
        state = queue.cache.state(commit, queue.name)
        state.blocks.refresh(commit)
        return nullcontext(View(commit.tx, state, commit.now_ms))

    return view


class _Redrive:
    """The messages that a redrive takes, and the messages that cannot be sent."""

    def __init__(
        self, viewing: Viewing, queue: LocalQueue, to: LocalQueue | None, limit: int | None, where: Where | None
    ) -> None:
        self._viewing = viewing
        self._to = to
        self._where = where
        self._known: dict[str, QueueState | None] = {}
        self._left: Counter[tuple[str, _Refusal]] = Counter()
        self.count = 0
        self.steps: list[tuple[Step, list[int]]] = []
        self.wanted: Counter[str] = Counter()
        """The number of messages by target queue."""
        with viewing(queue) as view:
            dead_letters = view.state.policy.dead_letter
            has_letters = dead_letters is not None and view.state.cache.load(view.snap, dead_letters) is not None
        self._choose(queue, _retry_failed, limit)
        self._choose(queue, _send_back, limit)
        if dead_letters is not None and has_letters:
            self._choose(queue.registry.handle(dead_letters), _send_back, limit, of=queue.name)

    def _choose(self, source: LocalQueue, step: Callable[..., int], limit: int | None, of: str | None = None) -> None:
        """Picks failed messages of a queue; or its dead letters, of one origin or all, that are not in flight."""
        letters = step is _send_back
        with self._viewing(source) as view:

            def goes(event: Event) -> bool:
                if self._where is not None and not self._where(event):
                    return False
                return not letters or view.is_free(event.seq)

            if self._where is None:
                events = view.letters(of) if letters else view.events(view.walk("failed"))
            else:  # `where` may ask why they were given up
                found = map(letter, view.letters(of)) if letters else view.failures()
                events = (GivenUpEvent.of(one.event, one) for one in found)
            events = unique(filter(goes, events))
            chosen = (event.seq for event in events if self._can_go(view, event, letters))
            seqs = list(islice(chosen, None if limit is None else limit - self.count))
        self.steps.append((partial(step, source=source, to=self._to), seqs))
        self.count += len(seqs)

    def _can_go(self, view: View, event: Event, is_letter: bool) -> bool:
        name = (origin(event) or "") if is_letter else view.state.name
        to, refusal = name if self._to is None else self._to.name, None
        if is_letter or self._to is not None:  # a failed message stays in its queue, unless it is sent to another queue
            if to not in self._known:
                self._known[to] = view.state.cache.load(view.snap, to)
            refusal = _refusal(self._known[to], to, event, None if self._to else event.headers.get(GROUP))
        if refusal is None:
            self.wanted[to] += 1
        else:
            self._left[name, refusal] += 1
        return refusal is None

    def report(self) -> tuple[LettersLeft, ...]:
        return tuple(LettersLeft(name, why.group, count, why.reason) for (name, why), count in self._left.items())


class _Refusal(NamedTuple):
    """The reason why a message cannot be sent to a queue; `group` is the target group, if it is the reason."""

    reason: str
    group: str | None = None


def _refusal(target: QueueState | None, to: str, event: Event, group: str | None) -> _Refusal | None:
    """Returns why a message cannot be sent to a queue; None if it can.

    In fanout mode a letter goes back only to the group that gave it up.
    """
    if target is None:
        return _Refusal(f"there is no queue {to!r} any more: redrive them with to=")
    if group is not None and target.fanout and group not in target.record.groups:
        reason = f"queue {to!r} has no group {group!r} any more: add it again, or redrive them with to="
        return _Refusal(reason, group)
    if event.key is not None and target.policy.priority:
        reason = f"they have ordering keys, and queue {to!r} has priorities: redrive them with to= a queue without"
        return _Refusal(reason)
    return None


def unique(events: Iterator[Event]) -> Iterator[Event]:
    """Yields events in order of position, each event once, even if several groups have given it up."""
    previous = 0
    for event in events:
        if event.seq != previous:
            previous = event.seq
            yield event


def _choose(events: Iterator[Event], limit: int | None, where: Where | None) -> list[int]:
    return list(islice((event.seq for event in events if where is None or where(event)), limit))


def _retry_failed(commit: Commit, seqs: list[int], source: LocalQueue, to: LocalQueue | None) -> int:
    """Makes failed messages ready again, or moves them to another queue."""
    state = source.cache.state(commit, source.name)
    end_lapsed(commit, state, seqs)
    failed = {seq: [one for one in state.find(commit.tx, seq) if one[1].state == FAILED] for seq in seqs}
    still = [seq for seq, found in failed.items() if found]
    if to is None and state.policy.max_size is not None:
        refuse_overflow(commit, state, len(still), state.policy.max_size)
    if to is not None:
        target = state.cache.state(commit, to.name)
        still = [seq for seq in still if _can_still_go(commit, state, seq, target)]
        _copy_over(commit, state, still, target)
    for seq in still:
        for group, message in failed[seq]:
            steps = read_steps(commit.tx, group, seq)
            group.remove(commit, message, Change("redriven", to=None if to is None else to.name))
            if to is None:
                put_steps(commit, group, seq, steps)
                group.requeue(commit, MessageRow(seq, TAKEN, priority=message.priority, key=message.key))
    return len(still)


def _can_still_go(commit: Commit, state: QueueState, seq: int, target: QueueState) -> bool:
    event = state.blocks.event(commit.tx, seq)
    return event is None or _refusal(target, target.name, event, None) is None


def _send_back(commit: Commit, seqs: list[int], source: LocalQueue, to: LocalQueue | None) -> int:
    """Sends dead letters to the queues they come from; in fanout mode to the group that gave them up."""
    state = source.cache.state(commit, source.name)
    targets: dict[str, dict[int, str | None]] = {}
    for seq in still_free(commit, state, seqs):
        event = state.blocks.event(commit.tx, seq)
        name = None if event is None else to.name if to is not None else origin(event)
        if event is not None and name is not None:
            group = event.headers.get(GROUP) if to is None else None
            # The queue or group may have been dropped, or changed, since the choice.
            if _refusal(state.cache.find(commit, name), name, event, group) is None:
                targets.setdefault(name, {})[seq] = group
    count = 0
    for name, groups in targets.items():
        target, chosen = state.cache.state(commit, name), list(groups)
        receipts = _copy_over(commit, state, chosen, target, former_headers if to is None else original_headers)
        for seq, receipt in zip(chosen, receipts, strict=True):
            group = groups[seq]
            _settle_for_others(commit, target, [] if group is None else [group], receipt)
            state.discard(commit, seq, Change("redriven", to=name))
        count += len(chosen)
    return count


def _settle_for_others(commit: Commit, target: QueueState, waiting: list[str], receipt: Receipt) -> None:
    """Settles a message for the groups of a fanout queue that do not wait for it: they had the message already."""
    for other in target.delivering(commit.tx) if target.fanout and waiting else ():
        if other.name not in waiting:
            # Already sorted in where lanes take turns.
            other.discard(commit, receipt.seq, Change("discarded", "another group's"))


# ── move ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def move(queue: LocalQueue, to: LocalQueue, limit: int | None, where: Where | None) -> int:
    if to is queue:
        raise ConfigError(f"queue {queue.name!r} cannot be moved to itself")
    with open_view(queue) as view:
        target = view.state.cache.load(view.snap, to.name)

        def goes(event: Event) -> bool:
            wanted = where is None or where(event)
            if wanted and event.key is not None and target is not None:
                refuse_keys(target)
            return wanted

        chosen = _choose(view.available(), limit, goes)

    def step(commit: Commit, seqs: list[int]) -> int:
        return _move(commit, queue.cache.state(commit, queue.name), seqs, to.name)

    return _run(queue, {to.name: len(chosen)}, [(step, chosen)])


def move_in(commit: Commit, queue: LocalQueue, to: str, limit: int | None, where: Where | None) -> int:
    """Does its work inside a commit that has written all earlier changes."""
    with _within(commit)(queue) as view:
        return _move(commit, view.state, _choose(view.available(), limit, where), to)


def _move(commit: Commit, state: QueueState, chosen: list[int], to: str) -> int:
    still = still_free(commit, state, chosen)
    _copy_over(commit, state, still, state.cache.state(commit, to))
    for seq in still:
        state.discard(commit, seq, Change("moved", to=to))
    return len(still)


# ── edit ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def replace(queue: LocalQueue, to: LocalQueue, event: Event, payload: object) -> Receipt | None:
    """Replaces the payload of a message that is not in flight, or sends a dead letter back with a new payload.

    Returns None when the message is gone. In fanout mode, groups that have settled the message do not get it again.
    """
    options = PushOptions(
        event.kind, event.key, headers=original_headers(keep_reply(event.headers, event.id)), cause=event
    )
    batch, _ = to.prepare(payload, options)

    def apply(commit: Commit, state: QueueState) -> Receipt | None:
        tx, seq = commit.tx, event.seq
        end_lapsed(commit, state, [seq])
        if not state.find_free(tx, seq):
            return None
        target, wanted = queue.cache.state(commit, to.name), _pushed_with(commit, state, seq)
        if to.name == queue.name:
            waiting = [group.name for group in target.delivering(tx) if group.find(tx, seq) is not None]
        else:
            died, group = original_options(event), event.headers.get(GROUP)
            refusal = _refusal(target, to.name, event, group)
            if refusal is not None:
                raise ConfigError(f"it cannot go back: {refusal.reason}")
            waiting = [] if group is None else [group]
            wanted = DeliveryOptions(died.priority, wanted.due, died.max_attempts, wanted.since)
        sent = Change("discarded", "replaced") if to.name == queue.name else Change("redriven", "replaced", to=to.name)
        state.discard(commit, seq, sent)  # first, so that a full queue has room for the new message
        (receipt,) = push(commit, target, batch, _options_for(wanted, event, target), moved=True)
        note_moved(commit, event, receipt)
        _settle_for_others(commit, target, waiting, receipt)
        return receipt

    receipt = queue.change(apply)
    queue.note_settled(1)
    return receipt


# ── copies ─────────────────────────────────────────────────────────────────────────────────────────────────────────
def _copy_over(
    commit: Commit, state: QueueState, seqs: list[int], target: QueueState, revived: Revived | None = None
) -> list[Receipt]:
    """Pushes copies of messages; raises an error when the target cannot take all of them.

    `revived` holds the headers of dead letters.
    """
    columns = None
    options: list[DeliveryOptions | None] = []
    events: list[Event] = []
    for seq in seqs:
        event = state.blocks.event(commit.tx, seq)
        if event is None:
            continue
        copy = copy_columns(event)
        wanted = _pushed_with(commit, state, seq)
        if revived is not None:
            copy.headers = [revived(event.headers) or None]
            died = original_options(event)
            wanted = DeliveryOptions(died.priority, wanted.due, died.max_attempts, wanted.since)
        options.append(_options_for(wanted, event, target))
        events.append(event)
        if columns is None:
            columns = copy
        else:
            columns.extend(copy)
    if columns is None:
        return []
    receipts = push(commit, target, as_batch(columns), None, each=options, moved=True)
    groups = state.all_groups(commit.tx) if state.traits.notes else []
    for event, receipt in zip(events, receipts, strict=True):
        note_moved(commit, event, receipt)
        carry_steps(commit, groups, event, target, receipt.seq)
    return receipts


def _options_for(wanted: DeliveryOptions, event: Event, target: QueueState) -> DeliveryOptions:
    """Returns the options of a message's push that another queue supports."""
    if event.key is not None:
        wanted.due = wanted.priority = 0  # the delay of a retry: the messages of a key keep their order
    to_front = wanted.priority == keys.FRONT and target.policy.fair_by is None
    if not target.policy.priority and not to_front:
        wanted.priority = 0
    return wanted


def _pushed_with(commit: Commit, state: QueueState, seq: int) -> DeliveryOptions:
    """Returns the remaining options of delivery of a message."""
    tx, found = commit.tx, DeliveryOptions()
    special = tx.get(keys.special_key(state.topic, seq)) if state.traits.special >= seq else None
    if special is not None:
        known = read_special(special, state.name)
        found.priority, found.due, found.since = known.priority, known.due, known.since_ms
    if not state.fanout:
        message = state.group(tx, WORK).find(tx, seq)
        if message is not None:
            found.priority = message.priority
            found.due = message.due if message.state == WAITING else 0
            found.since = message.since_ms
    found.max_attempts = state.own_budget(tx, seq)
    return found
