"""The contract suite `test_queue_fairness`, over HTTP."""

from server.over_http.suite import STORE, TRANSACTION, contract_of

WITHOUT = {
    "test_two_processes_share_the_turns": STORE,
    "test_a_rolled_back_push_has_no_turn": TRANSACTION,
}

globals().update(contract_of("test_queue_fairness", WITHOUT))
