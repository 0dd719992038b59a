"""The contract suite `test_queue_pausing`, over HTTP."""

from server.over_http.suite import STORE, contract_of

WITHOUT = {
    "test_a_pause_holds_in_other_processes_and_their_resume_wakes": STORE,
}

globals().update(contract_of("test_queue_pausing", WITHOUT))
