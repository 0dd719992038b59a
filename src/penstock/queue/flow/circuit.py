"""Circuit breakers of groups, in the store: told of every failure, and asked by every take, inside their commits."""

from __future__ import annotations

from penstock.engine.contract import Snapshot
from penstock.journal.commit.commit import Commit
from penstock.observe.logs import Log
from penstock.queue import metrics
from penstock.queue.flow.breaker import Breaker, BreakerState
from penstock.queue.flow.rate import read_rate
from penstock.queue.flow.rows import encode_row, flow_key, read_row
from penstock.queue.state.cache import QueueState
from penstock.queue.state.group import Group

log = Log("penstock.queue")


def load_breaker(snap: Snapshot, group: Group) -> Breaker:
    return read_row(snap, flow_key(group.topic, group.number, b"k"), Breaker, group.queue.name) or Breaker()


def save_breaker(commit: Commit, group: Group, breaker: Breaker) -> None:
    commit.tx.put(flow_key(group.topic, group.number, b"k"), encode_row(breaker))


def forget_breakers(commit: Commit, queue: QueueState) -> None:
    """The policy has no breaker any more: one that it gets later begins closed."""
    for group in queue.all_groups(commit.tx):
        commit.tx.delete(flow_key(group.topic, group.number, b"k"))


def breaker_state(snap: Snapshot, queue: QueueState, group: Group, now: int) -> BreakerState | None:
    """What a group's breaker is; None where the policy has none."""
    return None if queue.policy.breaker is None else load_breaker(snap, group).state(now)


def note_failure(commit: Commit, queue: QueueState, group: Group, seq: int) -> None:
    """An attempt failed."""
    policy = queue.policy
    if policy.breaker is None:
        return
    breaker = load_breaker(commit.tx, group)
    rate = read_rate(policy.breaker)
    again = bool(breaker.open_until)
    if breaker.failed(rate, round(policy.breaker_pause * 1000), commit.now_ms, seq):
        metrics.breaker_opened.labels(queue=queue.name).inc()
        log.warning(
            "the circuit breaker of queue %r (group %r) %s: nothing is handed out for %g s",
            queue.name,
            group.name or "default",
            "stays open, the message tried has failed" if again else f"opens after {rate.count} failures",
            policy.breaker_pause,
        )
    save_breaker(commit, group, breaker)


def note_success(commit: Commit, queue: QueueState, group: Group, seqs: list[int]) -> None:
    """Messages were handled."""
    breaker = load_breaker(commit.tx, group)
    if any(breaker.succeeded(seq) for seq in seqs):
        log.info("the circuit breaker of queue %r (group %r) closes", queue.name, group.name or "default")
        save_breaker(commit, group, breaker)
        commit.touched.setdefault(queue.name, 0)  # takes may wait for it
