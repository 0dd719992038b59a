"""The layout of the package: folders that can be taken in at a glance, and one class for one name."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import defaultdict
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src"
MODULES = sorted(path for path in SOURCE.rglob("*.py") if "__pycache__" not in path.parts)
MOST_MODULES, MOST_LINES, MOST_LINES_OF_A_FILE = 12, 2_000, 400

QUEUES = ("queue/", "surface/", "remote/queues/", "server/acts/", "cli/commands/queues/")
VERBS = {"settl.*": (*QUEUES, "observe/", "server/pages/"), "take(_many)?": QUEUES, "look(?!up).*": ()}
"""Verbs with one meaning, and where that meaning lives. A look-up in the entity index is a noun."""


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


def test_a_file_is_one_subject_of_at_most_four_hundred_lines() -> None:
    lines = {str(path.relative_to(SOURCE)): len(path.read_text("utf-8").splitlines()) for path in MODULES}
    long = {name: count for name, count in lines.items() if count > MOST_LINES_OF_A_FILE}
    assert long == {}, "find the second subject of it, and give that a file of its own"


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


def test_a_verb_with_one_meaning_names_nothing_elsewhere() -> None:
    """`settle` ends a delivery and `take` leases a message; to look is to poll, to scan, to read or to inspect."""
    elsewhere = []
    for path in MODULES:
        place = str(path.relative_to(SOURCE)).removeprefix("penstock/")
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                homes = [home for verb, home in VERBS.items() if re.fullmatch(verb, node.name.strip("_"))]
                elsewhere += [f"{place}: {node.name}" for home in homes if not place.startswith(home)]
    assert elsewhere == []


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
    "penstock/cli/commands/buffer/commands.py": 1,  # standard input is typed as something that may have no readinto
    "penstock/buffer/consume/running.py": 1,  # which of its two shapes a handler has was asked before
}
"""Where the type checker is told something, how often, and why."""


def test_types_are_said_not_cast() -> None:
    found: dict[str, int] = defaultdict(int)
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("cast", "typing.cast"):
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


def test_the_glossary_is_one_page_of_forty_terms_that_the_architecture_links() -> None:
    docs = SOURCE.parent / "docs"
    terms = [line for line in (docs / "glossary.md").read_text("utf-8").splitlines() if line.startswith("| **")]
    assert 40 <= len(terms) <= 45 and "(glossary.md)" in (docs / "architecture.md").read_text("utf-8")
    table = (docs / "architecture.md").read_text("utf-8").partition("## To change X")[2]
    assert sum(line.startswith("| ") for line in table.splitlines()) - 1 >= 25, "to change X, edit Y, test Z"


def test_every_room_has_its_tests() -> None:
    """Rooms without a folder of tests of their own are tested where their contracts or their users are."""
    elsewhere = {
        "documents": "server",
        "entity": "contract/entity",
        "local": "contract/journal",
        "payloads": "spark",
        "protocol": "server",
        "queue": "contract/queue",
        "remote": "server/over_http",
        "surface": "contract/queue",
        "transfer": "server",
    }
    tests = Path(__file__).parent
    rooms = sorted(path.name for path in (SOURCE / "penstock").iterdir() if (path / "__init__.py").exists())
    missing = [room for room in rooms if not list((tests / elsewhere.get(room, room)).glob("test_*.py"))]
    assert missing == []
