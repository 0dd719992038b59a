"""The contract suite `test_queue_breaker`, over HTTP."""

from server.over_http.suite import contract_of

globals().update(contract_of("test_queue_breaker"))
