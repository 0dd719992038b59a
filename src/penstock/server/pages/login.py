"""Logging in to the page: a token traded for a cookie that scripts cannot read and other sites cannot use."""

from __future__ import annotations

import asyncio
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from penstock.server.access import COOKIE, SESSION_SECONDS, address_of
from penstock.server.api import parameters
from penstock.server.pages import rendering
from penstock.server.service import Service

WRONG_TOKEN_PAUSE = 0.5
"""Seconds an answer to a wrong token takes, so that guessing is slow."""


async def login_page(request: Request) -> Response:
    service: Service = request.app.state.service
    service.access.check_origin(request, request.method)
    base = rendering.base_of(request)
    if request.method != "POST":
        return rendering.bare_page(request, "login.html", "Log in", problem=None)
    data = parse_qs((await parameters.form(request, service)).decode("utf-8", "replace"))
    token = data.get("token", [""])[0].strip()
    role = service.access.role_from(address_of(request), token)
    if role is None:
        await asyncio.sleep(WRONG_TOKEN_PAUSE)
        problem = "That token is not known here."
        return rendering.bare_page(request, "login.html", "Log in", status=403, problem=problem)
    answer = RedirectResponse(f"{base}/", 303)
    answer.set_cookie(
        COOKIE,
        service.access.session(token, role),
        max_age=SESSION_SECONDS,
        path=f"{base}/",
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return answer


async def logout(request: Request) -> Response:
    service: Service = request.app.state.service
    service.access.check_origin(request, request.method)
    base = rendering.base_of(request)
    service.access.end_session(request)
    answer = RedirectResponse(f"{base}/login", 303)
    answer.delete_cookie(COOKIE, path=f"{base}/")
    return answer


for _endpoint in (login_page, logout):
    _endpoint.open_to_all = True  # type: ignore[attr-defined]
