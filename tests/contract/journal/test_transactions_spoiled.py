"""A transaction whose own reading failed half-way keeps nothing, also when its caller goes on."""

from __future__ import annotations

from typing import Any

import pytest
from journals import payloads

from penstock import Draft, Journal
from penstock.errors import StorageError


@pytest.mark.parametrize("failure", [StorageError("no room"), KeyboardInterrupt()], ids=["error", "interrupt"])
@pytest.mark.parametrize("at", [1, 2])
@pytest.mark.parametrize("reading", ["read", "cause"])
def test_a_read_that_fails_while_it_writes_what_was_appended_spoils_the_transaction(
    journal: Journal, monkeypatch: pytest.MonkeyPatch, failure: BaseException, at: int, reading: str
) -> None:
    queue, orders = journal.queue("mail"), journal.topic("orders")
    first = orders.append("placed", 0)
    queue.push("m0")
    delivery = queue.take()
    assert delivery is not None
    transaction: Any = journal.transaction()

    def failing(tx: Any, key: bytes, value: bytes) -> None:
        puts.append(key)
        if len(puts) == at:
            raise failure
        put(tx, key, value)

    puts: list[bytes] = []
    with pytest.raises(StorageError, match="nothing of this transaction was kept"), transaction as tx:
        tx.append_many("orders", [Draft("placed", 1), Draft("placed", 2)])
        tx.push(queue, "m1")
        tx.ack(delivery)
        kind = type(transaction._held._commit.tx)
        put = kind.put
        with monkeypatch.context() as patch:
            patch.setattr(kind, "put", failing)
            with pytest.raises(type(failure)):
                if reading == "read":
                    tx.read("orders")
                else:
                    tx.append("audit", "noted", cause=first.id)
    assert payloads(orders.read()) == [0] and payloads(journal.topic("mail").read()) == ["m0"]
    delivery.ack()  # it is held as before
    assert queue.stats().in_flight == 0 and queue.take() is None
    assert orders.append("placed", 3).seq == 2
