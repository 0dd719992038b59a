"""The contract suite `test_queue_delivery`, over HTTP."""

from server.over_http.suite import contract_of

WITHOUT = {
    "test_a_lease_of_zero_lasts_until_its_journal_is_closed": "a server cannot see its clients' processes end",
}

globals().update(contract_of("test_queue_delivery", WITHOUT))
