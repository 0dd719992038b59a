"""The contract suite `test_across`, over HTTP."""

from server.over_http.suite import TRANSACTION, contract_of

WITHOUT = {
    "test_what_a_fence_hides_is_not_read": TRANSACTION,
}

globals().update(contract_of("test_across", WITHOUT))
