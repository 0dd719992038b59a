"""The contract suite `test_cursors`, over HTTP."""

from __future__ import annotations

from server.over_http.suite import tests_of

globals().update(tests_of("test_cursors", {}))
