"""The contract suite `test_queue_results`, over HTTP."""

from __future__ import annotations

from server.over_http.suite import TRANSACTION, contract_of

WITHOUT = {"test_acks_by_hand_in_batches_and_in_transactions_answer": TRANSACTION}

globals().update(contract_of("test_queue_results", WITHOUT))
