"""A user's own code by name: module:function, module:Class."""

from __future__ import annotations

import sys
from typing import Any

import click


def load_named(path: str, what: str = "a handler", like: str = "shop.mail:send", also: tuple[type, ...] = ()) -> object:
    """What `module:name` names, from this folder or the installed packages; UsageError says what is missing.

    It is a function or a class, or one of the types `also` names.
    """
    import importlib

    module_name, colon, name = path.partition(":")
    if not module_name or not colon or not name:
        raise click.UsageError(f"{what} is module:name, like {like}, not {path!r}")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(error.name + ".")):
            raise click.UsageError(
                f"there is no module {module_name!r} in this folder or among the installed packages"
            ) from None
        raise click.UsageError(f"{module_name} cannot be imported: {error}") from error
    for part in name.split("."):
        found = getattr(found, part, None)
        if found is None:
            raise click.UsageError(f"{module_name} has no {name}")
    if not callable(found) and not isinstance(found, also):
        raise click.UsageError(f"{path} is no function")
    return found
