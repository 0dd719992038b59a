"""The contract suite `test_queue_merging`, over HTTP."""

from server.over_http.suite import TRANSACTION, contract_of

WITHOUT = {
    "test_what_a_rolled_back_transaction_pushed_throttles_nothing": TRANSACTION,
    "test_a_rolled_back_push_replaces_nothing": TRANSACTION,
}

globals().update(contract_of("test_queue_merging", WITHOUT))
