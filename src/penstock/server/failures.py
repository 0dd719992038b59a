"""Errors as answers: problems for programs, a page for people."""

from __future__ import annotations

import logging

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from penstock.errors import PenstockError
from penstock.protocol.operation import PREFIX
from penstock.protocol.problems import problem
from penstock.server.pages.parts import base_of, problem_page
from penstock.server.problems import Refused, error_answer, problem_answer

log = logging.getLogger("penstock.server")


def _wants_page(request: Request) -> bool:
    """Whether a person asked, with a browser, for a page."""
    path = request.url.path.removeprefix(base_of(request))
    return "text/html" in request.headers.get("accept", "") and not path.startswith(PREFIX)


def answer_refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    if _wants_page(request):
        if error.status == 401:
            return RedirectResponse(f"{base_of(request)}/login", 303)
        return problem_page(request, error.status, str(error))
    return problem_answer(problem(error.status, error.name, str(error)), error.headers)


def answer_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, PenstockError)
    answer = error_answer(error)
    if answer.status_code >= 500:
        log.error("%s %s: %s: %s", request.method, request.url.path, type(error).__name__, error)
    if _wants_page(request):
        return problem_page(request, answer.status_code, str(error))
    return answer


def answer_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    names = {404: "NotFound", 405: "MethodNotAllowed"}
    said = {404: f"there is nothing at {request.url.path}", 405: f"{request.url.path} does not take {request.method}"}
    name, message = names.get(error.status_code, "HTTPError"), said.get(error.status_code, error.detail)
    if _wants_page(request):
        return problem_page(request, error.status_code, message)
    return problem_answer(problem(error.status_code, name, message), dict(error.headers or {}))


def answer_defect(request: Request, error: Exception) -> Response:
    """An error that no code expected: the log has the details, the answer has none."""
    log.exception("%s %s failed", request.method, request.url.path, exc_info=error)
    if _wants_page(request):
        return problem_page(request, 500, "its log says how")
    return problem_answer(problem(500, "InternalError", "the server failed; its log says how"))
