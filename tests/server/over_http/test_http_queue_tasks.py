"""The contract suite `test_queue_tasks`, over HTTP."""

from __future__ import annotations

from server.over_http.suite import contract_of

WITHOUT: dict[str, str] = {}

globals().update(contract_of("test_queue_tasks", WITHOUT))
