"""Logging in to the page: a token traded for a cookie that scripts cannot read and other sites cannot use."""

from __future__ import annotations

import asyncio
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from penstock.server.access import COOKIE, SESSION_SECONDS
from penstock.server.api import parameters
from penstock.server.pages import parts
from penstock.server.pages.html import Html, el
from penstock.server.service import Service

WRONG_TOKEN_PAUSE = 0.5
"""Seconds an answer to a wrong token takes, so that guessing is slow."""


def _form(base: str, problem: str | None) -> Html:
    return el(
        "form",
        el("h1", "penstock"),
        el("p", problem, class_="problem", role="alert") if problem else None,
        el(
            "label",
            "Token ",
            el("input", name="token", type="password", required=True, autofocus=True, autocomplete="current-password"),
        ),
        el("button", "Log in", type="submit"),
        action=f"{base}/login",
        method="post",
        class_="login",
    )


async def login_page(request: Request) -> Response:
    service: Service = request.app.state.service
    service.access.check_origin(request, request.method)
    base = parts.base_of(request)
    if request.method != "POST":
        return parts.bare_page(request, "Log in", _form(base, None))
    data = parse_qs((await parameters.body(request, service.limits)).decode("utf-8", "replace"))
    role = service.access.role_of_token(data.get("token", [""])[0].strip())
    if role is None:
        await asyncio.sleep(WRONG_TOKEN_PAUSE)
        return parts.bare_page(request, "Log in", _form(base, "That token is not known here."), status=403)
    answer = RedirectResponse(f"{base}/", 303)
    answer.set_cookie(
        COOKIE,
        service.access.session(role),
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
    base = parts.base_of(request)
    answer = RedirectResponse(f"{base}/login", 303)
    answer.delete_cookie(COOKIE, path=f"{base}/")
    return answer


for _endpoint in (login_page, logout):
    _endpoint.open_to_all = True  # type: ignore[attr-defined]
