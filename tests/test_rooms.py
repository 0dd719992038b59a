"""The layout of the package: folders that can be taken in at a glance, and one class for one name."""

from __future__ import annotations

import ast
import tomllib
from collections import defaultdict
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src"
MODULES = sorted(path for path in SOURCE.rglob("*.py") if "__pycache__" not in path.parts)
MOST_MODULES, MOST_LINES = 12, 2_000


def by_folder() -> dict[Path, list[Path]]:
    folders: dict[Path, list[Path]] = defaultdict(list)
    for path in MODULES:
        if path.name not in ("__init__.py", "__main__.py"):
            folders[path.parent].append(path)
    return folders


def test_a_folder_holds_at_most_twelve_modules_and_two_thousand_lines() -> None:
    full = {}
    for folder, modules in by_folder().items():
        lines = sum(len(path.read_text("utf-8").splitlines()) for path in modules)
        if len(modules) > MOST_MODULES or lines > MOST_LINES:
            full[str(folder.relative_to(SOURCE))] = (len(modules), lines)
    assert full == {}, "a folder is one idea: make a room inside it"


def test_every_package_says_what_lives_in_it() -> None:
    silent = [
        str(path.relative_to(SOURCE))
        for path in MODULES
        if path.name == "__init__.py" and not ast.get_docstring(ast.parse(path.read_text("utf-8")))
    ]
    assert silent == []


def test_no_two_classes_have_one_name() -> None:
    places = defaultdict(list)
    for path in MODULES:
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef):
                places[node.name.lstrip("_")].append(str(path.relative_to(SOURCE)))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_the_import_contract_names_every_part_of_the_package() -> None:
    """A module outside every layer could import what it likes."""
    with (SOURCE.parent / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    named = {
        part.strip().removeprefix("penstock.").partition(".")[0]
        for contract in contracts
        if contract["type"] == "layers"
        for layer in contract["layers"]
        for part in layer.replace(":", "|").split("|")
    }
    parts = {
        path.stem if path.is_file() else path.name
        for path in (SOURCE / "penstock").iterdir()
        if (path.suffix == ".py" or (path / "__init__.py").exists()) and not path.name.startswith("__")
    }
    assert parts - named == set()
