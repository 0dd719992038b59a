"""Four processes push, take and acknowledge on one store at once: nothing lost, nothing delivered twice."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import pytest

import penstock
from waiting import DEADLINE

PROCESSES = 4
ROUNDS = 60


def _push_take_ack(url: str, number: int, results: Any) -> None:
    pushed: list[int] = []
    got: list[tuple[int, str, int]] = []
    with penstock.open(url, durability="process") as journal:
        queue = journal.queue("jobs")
        for n in range(ROUNDS):
            if n % 10 == 0:
                pushed += [one.seq for one in queue.push_many([f"{number}-{n}-{i}" for i in range(5)])]
            else:
                pushed.append(queue.push(f"{number}-{n}").seq)
            found = queue.take_many(3) if n % 7 == 0 else [one for one in (queue.take(),) if one is not None]
            got += [(one.seq, one.payload, one.attempt) for one in found]
            if n % 11 == 0:
                for one in found:
                    got.remove((one.seq, one.payload, one.attempt))
                    one.release()
            elif len(found) > 1:
                assert queue.ack_many([one.token for one in found]) == len(found)
            else:
                for one in found:
                    one.ack()
    results.put((number, pushed, got))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["work", pytest.param("fanout", marks=pytest.mark.nightly("crashes"))])
def test_four_processes_on_one_store_are_exact(tmp_path: Path, mode: str) -> None:
    url = f"sqlite:{tmp_path / 'store'}"
    with penstock.open(url) as journal:
        journal.queue("jobs", mode=mode).add_group("default")
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    crowd = [context.Process(target=_push_take_ack, args=(url, number, results)) for number in range(PROCESSES)]
    for process in crowd:
        process.start()
    try:
        outcome = [results.get(timeout=DEADLINE) for _ in crowd]
    finally:
        for process in crowd:
            process.join(DEADLINE)
            process.kill()
    pushed = sorted(seq for _, seqs, _ in outcome for seq in seqs)
    got = [one for _, _, found in outcome for one in found]
    assert pushed == list(range(1, len(pushed) + 1))
    assert len({seq for seq, _, _ in got}) == len(got), "a message was delivered twice"
    assert {attempt for _, _, attempt in got} == {1}
    with penstock.open(url) as journal:
        queue = journal.queue("jobs")
        left = [event.seq for event in queue]
        assert sorted([seq for seq, _, _ in got] + left) == pushed
        assert queue.stats().ready == len(left) == len(queue) and queue.pending() == []
        payloads = {one.seq: one.payload for one in journal.topic("jobs").read()}
    assert all(payloads.get(seq, payload) == payload for seq, payload, _ in got)
