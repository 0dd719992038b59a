"""The contract suite `test_task_results`, over HTTP."""

from server.over_http.suite import contract_of

WITHOUT = {"test_bytes_come_back_as_bytes": "a reply over HTTP is JSON"}

globals().update(contract_of("test_task_results", WITHOUT))
