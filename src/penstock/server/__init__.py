"""The journal over HTTP: an API under /v1 for other languages and machines, a console for people, and metrics.

    app(journal)         the ASGI application; mount it in one of your own, or run it with `penstock serve`

    application.py       routes, health, metrics, errors as answers; running.py: `penstock serve`
    service.py           what every handler works with: refusals, bytes held, the served journal and its samples
    access.py            tokens and roles, hosts, who may send what from where
    limits.py            how large, how long, how many
    api/                 the operations of `penstock.core.protocol`: binding.py makes routes of them, the others serve
                         operations with streams, long polls or media types of their own
    pages/               the console; acts.py: what a person can do there, forms.py: what a person types

The server trusts no input. It bounds sizes and waits, it escapes payloads, and a browser may act only from the console
itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from penstock.core.surface.journal import Journal

__all__ = ["app"]


def app(journal: Journal, **options: Any) -> Starlette:
    """Returns the application that serves a journal; see `penstock.server.application.make_app` for the options."""
    try:
        from penstock.server.application import make_app
    except ModuleNotFoundError as error:
        needs = f"the server needs the package {error.name!r}, which is not installed"
        raise ConfigError(f'{needs}: pip install "penstock[server]"') from error

    return make_app(journal, **options)
