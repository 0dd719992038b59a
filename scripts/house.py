"""How the house looks: lines per folder, what is declared more than once, calls of the five hot paths, the start.

python scripts/house.py            # of this tree
python scripts/house.py --names 7  # and forty names drawn by a seed: would an engineer of the field search for each?
python scripts/house.py --files    # and the files that each path goes through
python scripts/house.py --starts   # and how long `penstock topics` takes, as a multiple of bare Python (CPU time)
"""

from __future__ import annotations

import ast
import random
import resource
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "penstock"


def code_lines(text: str) -> int:
    """Lines that are neither blank nor comments nor docstrings."""
    prose = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            prose.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    rows = enumerate(text.splitlines(), 1)
    return sum(1 for number, row in rows if row.strip() and not row.lstrip().startswith("#") and number not in prose)


def print_folders() -> None:
    files = {path: path.read_text("utf-8") for path in sorted(PACKAGE.rglob("*.py"))}
    folders: dict[str, list[int]] = {}
    for path, text in files.items():
        folders.setdefault(str(path.parent.relative_to(PACKAGE)), []).append(code_lines(text))
    print("| folder | files | code lines |\n|---|---|---|")
    for folder, counts in folders.items():
        print(f"| {folder} | {len(counts)} | {sum(counts)} |")
    total = sum(sum(counts) for counts in folders.values())
    core = sum(sum(counts) for folder, counts in folders.items() if folder.partition("/")[0] == "core")
    tests = sum(code_lines(path.read_text("utf-8")) for path in (ROOT / "tests").rglob("*.py"))
    largest = max(files, key=lambda path: len(files[path].splitlines()))
    print(f"\n{len(files)} files, {len(folders)} folders; {total} code lines, {core} of the core, {tests} of the tests")
    print(f"largest file {largest.relative_to(PACKAGE)}: {len(files[largest].splitlines())} lines")


PUSHED = {"delay", "priority", "max_attempts", "dedup", "key"}
WANTED = {"kind", "kinds", "key", "key_prefix", "where", "since", "until"}
WIDE = 13
"""Arguments from which on a constructor is wide; those of a public call, which are its options, do not count."""


def print_declarations() -> None:
    """Prints what is declared more than once, or crosses a wall."""
    from penstock.core.protocol.openapi import OPERATIONS

    sys.path.insert(0, str(ROOT / "tests"))
    from test_rooms import private_uses

    trees = {path.relative_to(PACKAGE): ast.parse(path.read_text("utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}
    classes = [
        (path, node) for path, tree in trees.items() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
    ]

    def own_fields(node: ast.ClassDef) -> set[str]:
        return {
            one.target.id for one in node.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
        }

    def say(what: str, found: list[str]) -> None:
        print(f"{what}: {len(found)}" + (f" ({', '.join(found)})" if len(found) < 20 else ""))

    say("types of a push", [node.name for _, node in classes if len(own_fields(node) & PUSHED) >= 4])
    say("types of a query for events", [node.name for _, node in classes if len(own_fields(node) & WANTED) >= 4])
    handled = {node.name for path, tree in trees.items() if path.parts[:2] == ("server", "api") for node in tree.body
               if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}  # fmt: skip
    own = sorted(one.name for one in OPERATIONS if one.name in handled)
    say(f"operations with a handler of their own, of {len(OPERATIONS)}", own)
    bases = {node.name: {ast.unparse(one).split(".")[-1] for one in node.bases} for _, node in classes}
    acts = {
        name for name, found in bases.items() if any("Act" in found or "Act" in bases.get(one, ()) for one in found)
    }
    outside = [node.name for path, node in classes if node.name in acts and str(path) != "acts.py"]
    say(f"acts that are declared elsewhere than in acts.py, of {len(acts)}", outside)
    with (ROOT / "pyproject.toml").open("rb") as file:
        contract = tomllib.load(file)["tool"]["importlinter"]["contracts"][0]["layers"]
    lines = Counter(part.strip() for line in contract for part in line.replace(":", "|").split("|"))
    say("packages on two lines of the import contract", [name for name, count in lines.items() if count > 1])
    say("private names of another package's class", private_uses())
    wide = [
        f"{path}: {node.name}"
        for path, node in classes
        for one in node.body
        if isinstance(one, ast.FunctionDef) and one.name == "__init__"
        if len(one.args.args) + len(one.args.kwonlyargs) - 1 >= WIDE
    ]
    say(f"constructors of {WIDE} arguments and more", wide)


def print_names(seed: int, count: int = 40) -> None:
    """Prints names of functions, classes and attributes, each once, without locals."""
    names = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not node.name.startswith(
                "__"
            ):
                names.add(f"{path.relative_to(PACKAGE)}: {node.name}")
    print("\n".join(sorted(random.Random(seed).sample(sorted(names), count))))


def usual_calls(work: Callable[[Any], Any], prepare: Callable[[], Any] = lambda: None) -> str:
    """How many functions of the package some work usually calls, in which files: as the call budget counts."""
    runs: list[list[str]] = []
    for _ in range(25):
        given, called = prepare(), []

        def note(frame: Any, event: str, argument: object, called: list[str] = called) -> None:
            if event == "call" and frame.f_code.co_filename.startswith(str(PACKAGE)):
                called.append(frame.f_code.co_filename)

        sys.setprofile(note)
        try:
            work(given)
        finally:
            sys.setprofile(None)
        runs.append(called)
    usual = Counter(map(len, runs)).most_common(1)[0][0]
    run = next(run for run in runs if len(run) == usual)
    files = list(dict.fromkeys(str(Path(name).relative_to(PACKAGE)) for name in run))
    return f"{len(run)} calls in {len(files)} files" + (f" ({', '.join(files)})" if "--files" in sys.argv else "")


def print_calls() -> None:
    import penstock
    from penstock import Projection, on
    from penstock.core.engine import base

    class Balance(Projection):
        amount: int = 0

        @on("deposited")
        def add(self, payload: Any) -> None:
            self.amount += payload["amount"]

    base.QUIET_NS = -1 << 62  # as half a second after a store was made: until then its folder is looked at more closely
    with (
        tempfile.TemporaryDirectory() as folder,
        penstock.open(f"sqlite:{folder}/s.db", durability="process") as journal,
    ):
        topic, queue, account = journal.topic("t"), journal.queue("q"), journal.topic("accounts")
        topic.append("k", {"a": 1})
        print("append:", usual_calls(lambda _: topic.append("k", {"a": 1})))
        queue.push_many(range(200))
        queue.take()
        print("take:", usual_calls(lambda _: queue.take()))
        print("ack:", usual_calls(lambda delivery: delivery.ack(), queue.take))
        newest = [account.append("deposited", {"amount": 1}, key="a", expect=0).seq]

        def expecting(_: object) -> None:
            newest.append(account.append("deposited", {"amount": 1}, key="a", expect=newest[-1]).seq)

        print("append(expect=):", usual_calls(expecting))
        account.project(Balance, "a")

        def deposit() -> None:
            account.append("deposited", {"amount": 1}, key="a")

        print("project with one new event:", usual_calls(lambda _: account.project(Balance, "a"), deposit))


def print_starts(tries: int = 7) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = f"{folder}/s.db"
        subprocess.run([sys.executable, "-c", f"import penstock; penstock.open({store!r}).close()"], check=True)

        def fastest(*command: str) -> float:
            taken = []
            for _ in range(tries):
                before = resource.getrusage(resource.RUSAGE_CHILDREN)
                subprocess.run([sys.executable, *command], check=True, capture_output=True)
                after = resource.getrusage(resource.RUSAGE_CHILDREN)
                taken.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
            return min(taken)

        bare, listing = fastest("-c", "pass"), fastest("-m", "penstock.cli", "--url", store, "topics")
        print(f"start: python {bare * 1000:.0f} ms, penstock topics {listing * 1000:.0f} ms: {listing / bare:.1f} ×")


if __name__ == "__main__":
    print_folders()
    print_declarations()
    print_calls()
    if "--names" in sys.argv:
        print_names(int(sys.argv[sys.argv.index("--names") + 1]))
    if "--starts" in sys.argv:
        print_starts()
