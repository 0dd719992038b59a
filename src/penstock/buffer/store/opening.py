"""From a url and options to a store."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

from penstock.buffer.store.azure import azure_config
from penstock.buffer.store.contract import CLOUD_SCHEMES, ObjectStore
from penstock.errors import ConfigError
from penstock.names import shown_url, split_url

if TYPE_CHECKING:
    from penstock.buffer.store.cloud import CloudStore

_SCHEMES = (*CLOUD_SCHEMES, "file", "memory")
#: Options that shape the HTTP client; every other one is the provider's own (region, endpoint, access_key_id …).
_CLIENT_OPTIONS = frozenset(
    {
        "allow_http",
        "allow_invalid_certificates",
        "connect_timeout",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
        "proxy_url",
        "read_timeout",
        "timeout",
        "user_agent",
    }
)
#: obstore would retry a request for three minutes; the producer's own retries know more (which batch, which attempt).
_RETRY: dict[str, object] = {
    "max_retries": 3,
    "retry_timeout": timedelta(seconds=20),
    "backoff": {"init_backoff": timedelta(milliseconds=50), "max_backoff": timedelta(seconds=2), "base": 2},
}
#: For a whole request: a batch of 64 MiB at 5 Mbit/s still gets through, which obstore's 30 s would not allow.
_TIMEOUT = "120s"
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")


def open_store(url: str | ObjectStore, options: Mapping[str, object] | None = None) -> ObjectStore:
    """Opens the store a url names; a store is returned as it is.

    Credentials, region and endpoint come from the provider's usual environment variables (AWS_ACCESS_KEY_ID,
    AWS_REGION, AWS_ENDPOINT_URL, GOOGLE_SERVICE_ACCOUNT, AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_CONNECTION_STRING …)
    unless `options` names them.
    """
    if not isinstance(url, str):
        if options:
            raise ConfigError("options belong to a url; a store that is already open has its own")
        return url
    parts = split_url(url)
    scheme = {"s3a": "s3", "gcs": "gs", "azure": "az"}.get(parts.scheme, parts.scheme)
    given = dict(options or {})
    if scheme not in _SCHEMES:
        raise ConfigError(
            f"{shown_url(url)!r} does not name a store: the url must begin with one of "
            f"{', '.join(f'{known}://' for known in _SCHEMES)}"
        )
    if scheme == "file":
        return _open_file(url, parts.netloc, unquote(parts.path), given)
    try:
        from penstock.buffer.store.cloud import open_memory
    except ImportError as error:
        raise ConfigError(f'{scheme}:// needs obstore: pip install "penstock[buffer]"') from error
    if scheme == "memory":
        return open_memory(url, given)
    return open_cloud(url, given)


def _open_file(url: str, host: str, path: str, options: Mapping[str, object]) -> ObjectStore:
    from penstock.buffer.store.file import FileStore

    if host not in ("", "localhost") or not path.startswith("/"):
        raise ConfigError(f"{shown_url(url)!r} must give an absolute path: file:///data/buffer has three slashes")
    if options:
        raise ConfigError(f"file:// takes no options, not {', '.join(map(repr, options))}")
    return FileStore(path)


class CloudSettings(NamedTuple):
    """How a store is reached: the provider's own settings, the HTTP client's, and the endpoint if one is named."""

    config: dict[str, object]
    client: dict[str, object]
    endpoint: str


def cloud_settings(url: str, options: Mapping[str, object], environ: Mapping[str, str]) -> CloudSettings:
    """What `options` and the environment say about s3://, gs:// or az://, for whichever library opens it."""
    if shown_url(url) != url:
        raise ConfigError(
            f"{shown_url(url)!r} was given with a user, a password or a query, and they do not belong into a url: "
            "give options (access_key_id, secret_access_key, endpoint, region …), or the environment's variables"
        )
    client = {name: value for name, value in options.items() if name in _CLIENT_OPTIONS}
    config = {name: value for name, value in options.items() if name not in _CLIENT_OPTIONS}
    if split_url(url).scheme in ("az", "azure"):
        config = azure_config(config, environ)
    endpoint = str(config.get("endpoint") or next((environ[name] for name in _ENDPOINTS if environ.get(name)), ""))
    if endpoint.startswith("http://"):  # an emulator or a private store without TLS: http was written on purpose
        client.setdefault("allow_http", True)
    if not split_url(url).netloc:
        raise ConfigError(f"{shown_url(url)!r} names no bucket or container")
    return CloudSettings(config, client, endpoint)


def open_cloud(url: str, options: Mapping[str, object], retry: Mapping[str, object] | None = None) -> CloudStore:
    """Opens s3://, gs:// or az://; ConfigError names the option the provider does not know."""
    from obstore.exceptions import BaseError
    from obstore.store import from_url

    from penstock.buffer.store.cloud import CloudStore

    config, client, endpoint = cloud_settings(url, options, os.environ)
    client.setdefault("timeout", _TIMEOUT)
    try:
        inner = from_url(url, config=config, client_options=client, retry_config=retry or _RETRY)  # type: ignore[call-overload]
    except (BaseError, ValueError, TypeError) as error:
        said = str(error).partition("\n")[0]
        raise ConfigError(f"cannot open {url}: {said}") from error
    return CloudStore(url, options, inner, open_cloud, endpoint)
