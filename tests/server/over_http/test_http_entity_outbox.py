"""The contract suite `test_entity_outbox`, over HTTP."""

from server.over_http.suite import contract_of

globals().update(contract_of("test_entity_outbox"))
