"""The contract suite `test_task_crossings`, over HTTP."""

from server.over_http.suite import contract_of

globals().update(contract_of("test_task_crossings"))
