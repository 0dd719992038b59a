"""The contract suites of steps and failures of tasks, over HTTP."""

from server.over_http.suite import contract_of

globals().update(contract_of("test_task_steps"))
