"""The contract suite `test_queue_results`, over HTTP."""

from server.over_http.suite import TRANSACTION, contract_of

FENCE = "a fence lives and dies with the process that opened it"
WITHOUT = {
    "test_acks_by_hand_in_batches_and_in_transactions_answer": TRANSACTION,
    "test_nothing_is_taken_away_behind_an_exclusive_fence_if_somebody_must_be_told": FENCE,
}

globals().update(contract_of("test_queue_results", WITHOUT))
