"""Problems as answers, and the requests that the server itself refuses."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from penstock.errors import Backpressure, PenstockError
from penstock.protocol.operation import PROBLEM
from penstock.protocol.problems import Problem, problem_of

_encode = msgspec.json.Encoder().encode


class Refused(Exception):
    """A request the server itself refuses: too large, not allowed, not there."""

    def __init__(self, status: int, name: str, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.name = name
        self.headers = headers


def problem_answer(problem: Problem, headers: dict[str, str] | None = None) -> Response:
    """A problem+json answer."""
    return Response(_encode(problem), problem.status, headers=headers, media_type=PROBLEM)


def error_answer(error: PenstockError) -> Response:
    """The problem+json answer that an error of the journal is."""
    headers = {}
    if isinstance(error, Backpressure):
        headers["Retry-After"] = str(max(1, round(error.retry_after)))
    return problem_answer(problem_of(error), headers)
