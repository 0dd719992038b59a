"""The contract suite `test_queue_fairness`, over HTTP."""

from server.over_http.suite import STORE, contract_of

WITHOUT = {
    "test_two_processes_share_the_turns": STORE,
}

globals().update(contract_of("test_queue_fairness", WITHOUT))
