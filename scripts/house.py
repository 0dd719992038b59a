"""How the house looks: files and lines per folder, the largest file, calls of the five hot paths, start of the command.

python scripts/house.py            # of this tree
python scripts/house.py --starts   # and how long `penstock topics` takes, as a multiple of bare Python (CPU time)
"""

from __future__ import annotations

import ast
import resource
import subprocess
import sys
import tempfile
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
    folders: dict[str, list[str]] = {}
    for path, text in files.items():
        folders.setdefault(str(path.parent.relative_to(PACKAGE)), []).append(text)
    print("| folder | files | lines |\n|---|---|---|")
    for folder, texts in folders.items():
        print(f"| {folder} | {len(texts)} | {sum(len(text.splitlines()) for text in texts)} |")
    largest = max(files, key=lambda path: len(files[path].splitlines()))
    print(
        f"\nfiles {len(files)}, folders {len(folders)}, lines {sum(len(text.splitlines()) for text in files.values())}"
    )
    print(f"code lines {sum(map(code_lines, files.values()))}")
    print(f"largest file {largest.relative_to(PACKAGE)}: {len(files[largest].splitlines())} lines")


def usual_calls(work: Callable[[Any], Any], prepare: Callable[[], Any] = lambda: None) -> str:
    """How many functions of the package some work usually calls, in how many files: as the call budget counts."""
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
    return f"{len(run)} calls in {len(set(run))} files"


def print_calls() -> None:
    import penstock
    from penstock import Projection, on

    class Balance(Projection):
        amount: int = 0

        @on("deposited")
        def add(self, payload: Any) -> None:
            self.amount += payload["amount"]

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
    print_calls()
    if "--starts" in sys.argv:
        print_starts()
