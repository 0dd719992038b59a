"""The contract suite `test_payload_types`, over HTTP."""

from server.over_http.suite import TRANSACTION, contract_of

globals().update(contract_of("test_payload_types", {"test_a_transaction_checks_and_gives_values": TRANSACTION}))
