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


def test_every_package_of_the_core_names_its_modules() -> None:
    core = SOURCE / "penstock" / "core"
    unnamed = []
    for package in (path.parent for path in MODULES if path.name == "__init__.py" and path.is_relative_to(core)):
        said = ast.get_docstring(tree(package / "__init__.py")) or ""
        there = {path.stem for path in package.glob("*.py")} | {
            path.parent.name for path in package.glob("*/__init__.py")
        }
        unnamed += [
            f"{package.name}: {name}" for name in sorted(there - {"__init__"}) if not re.search(rf"\b{name}\b", said)
        ]
    assert unnamed == []


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
    "penstock/core/schema.py": 3,  # a decoder is made for a type that the caller names: what it gives is of that type
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


def defined_in(path: Path) -> set[str]:
    """The classes, functions, methods and values that a module defines, methods as `Class.method`."""
    found: set[str] = set()

    def walk(body: list[ast.stmt], before: str) -> None:
        for node in body:
            match node:
                case ast.ClassDef(name=name, body=inner):
                    found.add(before + name)
                    walk(inner, f"{before}{name}.")
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    found.add(before + name)
                case ast.Assign(targets=[*targets]):
                    found.update(before + target.id for target in targets if isinstance(target, ast.Name))
                case ast.AnnAssign(target=ast.Name(id=name)):
                    found.add(before + name)

    walk(tree(path).body, "")
    return found


def named_places(cell: str) -> list[tuple[str, list[str]]]:
    """The files that a cell of the page names, each with its names: "`a.py`: `x`, `y`; `b.py`: `z`"."""
    found = []
    for part in cell.split(";"):
        file, _, names = part.partition(":")
        found.append((file.strip().strip("`"), re.findall(r"`([^`]+)`", names)))
    return found


def test_the_page_of_the_architecture_names_files_and_names_that_exist() -> None:
    """docs/architecture.md: the answers to its questions, its seams, and every file of its paths."""
    root, package = SOURCE.parent, SOURCE / "penstock"
    page = (root / "docs" / "architecture.md").read_text("utf-8")
    questions = [
        [cell.strip() for cell in row.strip("| ").split(" | ")]
        for row in page.partition("## Twenty questions")[2].splitlines()
        if row.startswith("| ")
    ][1:]
    assert len(questions) >= 20 and {len(row) for row in questions} == {3}
    seams = [row.strip("| ").split(" | ")[0] for row in page.splitlines() if row.startswith("| `core/")]
    assert len(seams) == 4
    missing = [
        f"{file}: {name}"
        for cell in [*seams, *(places for _, places, _ in questions)]
        for file, names in named_places(cell)
        for name in names or ["no name"]
        if not (package / file).is_file() or name not in defined_in(package / file)
    ]
    missing += [
        name for _, _, tests in questions for name in re.findall(r"`([^`]+)`", tests) if not (root / name).exists()
    ]
    paths = page.partition("## Five paths")[2].partition("## Twenty questions")[0]
    assert paths.count("\n### ") == 5
    missing += [name for name in re.findall(r"`(\w[\w/]*/\w*\.py|\w+/\w+/)`", paths) if not (package / name).exists()]
    assert missing == []


MOST_PRIVATE_USES = 34
"""How often packages use a private name of another package's class. It only goes down: give what is needed a name."""


def private_uses() -> list[str]:
    """Where packages use a private name that another package's class has and they do not define themselves."""
    own: dict[str, set[str]] = defaultdict(set)
    used: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for path in MODULES:
        parts = path.relative_to(SOURCE).with_suffix("").parts
        package = parts[:3][-1] if parts[1] == "core" else parts[:2][-1]
        if package == "engines":
            package = "engine"  # an engine is a subclass of what the core has for all of them
        for node in ast.walk(tree(path)):
            match node:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                    own[package].add(name)
                case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                    own[package].add(name)
                case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                    own[package].add(name)
                case ast.Attribute(value=ast.Name(id="self" | "cls")):
                    pass
                case ast.Attribute(attr=name) if name.startswith("_") and not name.startswith("__"):
                    used[package].append((name, f"{path.relative_to(SOURCE)}:{node.lineno} {name}"))
    defined = set().union(*own.values())
    return [
        place
        for package, uses in used.items()
        for name, place in uses
        if name in defined and name not in own[package]  # what no package defines is a library's
    ]


def test_packages_leave_each_others_private_names_alone() -> None:
    """A package is a folder; a private name of a class is one that the package itself defines nowhere."""
    foreign = private_uses()
    assert len(foreign) <= MOST_PRIVATE_USES, "\n".join(foreign)
