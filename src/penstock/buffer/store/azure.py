"""The names under which Azure's own tools keep credentials, where obstore reads others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.errors import ConfigError

_CONNECTION = "AZURE_STORAGE_CONNECTION_STRING"
#: A variable of the az command line, and the option it stands for.
_VARIABLES = {"AZURE_STORAGE_ACCOUNT": "account_name", "AZURE_STORAGE_KEY": "account_key"}
_PARTS = {"accountname": "account_name", "accountkey": "account_key", "sharedaccesssignature": "sas_token"}


def azure_config(config: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """What obstore needs to know: a connection string taken apart, and what only Azure's tools name.

    What is given goes before the environment. A connection string there counts when no option is given: mixed with one,
    it could lead the credentials of one account to another.
    """
    given = dict(config)
    connection = given.pop("connection_string", None)
    if connection is not None:
        return {**_taken_apart(connection, "the option connection_string"), **given}
    if not given and environ.get(_CONNECTION):
        return _taken_apart(environ[_CONNECTION], _CONNECTION)
    found = {
        option: environ[variable]
        for variable, option in _VARIABLES.items()
        if environ.get(variable) and not environ.get(f"AZURE_STORAGE_{option.upper()}")
    }
    return {**found, **given}


def _taken_apart(text: str, where: str) -> dict[str, object]:
    parts = {}
    for part in filter(None, (each.strip() for each in text.split(";"))):
        name, sign, value = part.partition("=")
        if not sign:
            raise ConfigError(f"{where} must be name=value pairs between semicolons; {name[:20]!r} has no value")
        parts[name.strip().lower()] = value.strip()
    if parts.get("usedevelopmentstorage", "").lower() == "true":
        return {"use_emulator": "true"}
    config: dict[str, object] = {option: parts[name] for name, option in _PARTS.items() if parts.get(name)}
    endpoint = parts.get("blobendpoint")
    if endpoint is None and "endpointsuffix" in parts and "account_name" in config:
        protocol = parts.get("defaultendpointsprotocol", "https")
        endpoint = f"{protocol}://{config['account_name']}.blob.{parts['endpointsuffix']}"
    if endpoint is not None:
        config["endpoint"] = endpoint.rstrip("/")
        # https://account.blob.core.windows.net: a string with a signature instead of a key names no account.
        config.setdefault("account_name", endpoint.partition("://")[2].partition(".")[0])
    if "account_name" not in config:
        raise ConfigError(f"{where} names no account: AccountName= or BlobEndpoint= is missing")
    return config
