"""The layout of the package: layers that point one way, and one class for one name."""

from __future__ import annotations

import ast
import functools
import re
import tomllib
from collections import defaultdict
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src"
MODULES = sorted(path for path in SOURCE.rglob("*.py") if "__pycache__" not in path.parts)


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def test_every_package_says_what_lives_in_it() -> None:
    silent = [
        str(path.relative_to(SOURCE))
        for path in MODULES
        if path.name == "__init__.py" and not ast.get_docstring(tree(path))
    ]
    assert silent == []


def test_no_two_classes_have_one_name() -> None:
    places = defaultdict(list)
    for path in MODULES:
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef):
                places[node.name.lstrip("_")].append(str(path.relative_to(SOURCE)))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_every_module_is_in_a_layer_of_the_import_contract() -> None:
    """A module outside every layer could import what it likes."""
    with (SOURCE.parent / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    layers = {
        part.strip()
        for contract in contracts
        if contract["type"] == "layers"
        for layer in contract["layers"]
        for part in layer.replace(":", "|").split("|")
    }
    modules = [".".join(path.relative_to(SOURCE).with_suffix("").parts) for path in MODULES]
    outside = [
        name
        for name in modules
        if not name.endswith(("__init__", "__main__")) and not any(f"{name}.".startswith(f"{one}.") for one in layers)
    ]
    assert outside == []


VAGUE = re.compile(r"\b(nobody|anybody|somebody|everybody|whoever|at rest|spoken for|who waits)\b", re.IGNORECASE)


def test_docstrings_and_messages_name_who_does_what() -> None:
    """A reader, a writer, a consumer, a caller or a process: each is a word of the glossary, "somebody" is none."""
    vague = [
        f"{path.relative_to(SOURCE)}:{number}: {line.strip()}"
        for path in MODULES
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if VAGUE.search(line)
    ]
    assert vague == []


CASTS = {
    "penstock/schema.py": 3,  # a decoder is made for a type that the caller names: what it gives is of that type
    "penstock/cli/buffer.py": 1,  # standard input is typed as something that may have no readinto
}
"""Where the type checker is told something, how often, and why."""


def test_types_are_said_not_cast() -> None:
    found: dict[str, int] = defaultdict(int)
    for path in MODULES:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "cast":
                found[str(path.relative_to(SOURCE))] += 1
    assert found == CASTS, "a type says what a thing is: change the type, or give the reason here"


def test_the_table_of_changes_names_files_that_exist() -> None:
    """docs/architecture.md: every path of the table exists; a short name lies in the folder before it."""
    root = SOURCE.parent
    table = (root / "docs" / "architecture.md").read_text("utf-8").partition("## To change X")[2]
    missing = []
    for row in table.splitlines():
        folder = root
        for name in re.findall(r"`([\w./-]+)`", row):
            places = [root / "src" / "penstock" / name, root / name, folder / name]
            found = next((place for place in places if place.exists()), None)
            if found is None:
                missing.append(name)
            else:
                folder = found if found.is_dir() else found.parent
    assert missing == []
