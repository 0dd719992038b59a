"""The journal over HTTP: an API under /v1 for other languages and machines, a page for people, metrics.

    app(journal)         the ASGI application; mount it in one of your own, or run it with `penstock serve`

    application.py       routes, and what every request passes through
    access.py            tokens and roles, hosts, who may send what from where
    problems.py          errors as problem+json, and back
    limits.py            how large, how long, how many
    topics.py, queues.py, messages.py, deliveries.py
                         the API; parameters.py: what requests may say; openapi.py: the same as a document
    live.py              following topics: one reader per topic, any number of listeners (server-sent events)
    sampler.py           samples with rates, taken once for all readers: the page, `/metrics`, `penstock top`


Nothing is trusted: sizes and waits are bounded, payloads are escaped, a browser may only act from the page itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from penstock.surface.journal import Journal

__all__ = ["app"]


def app(journal: Journal, **options: Any) -> Starlette:
    """The application that serves a journal; see `penstock.server.application.make_app` for the options."""
    try:
        from penstock.server.application import make_app
    except ModuleNotFoundError as error:
        needs = f"the server needs the package {error.name!r}, which is not installed"
        raise ConfigError(f'{needs}: pip install "penstock[server]"') from error

    return make_app(journal, **options)
