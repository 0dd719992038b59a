"""The contract suite `test_topic_append`, over HTTP."""

from server.over_http.suite import contract_of

WITHOUT = {}

globals().update(contract_of("test_topic_append", WITHOUT))
