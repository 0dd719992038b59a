"""Changes one expression of the code at a time and runs the tests that reach it: one of them must fail.

    python -m torture.mutation [--mutants 300] [--seed 1] [--target core/journal/commit] [--minutes 60]

The tests are collected once and run once, to learn which of them reach which line. Then each mutant is a fork of that
process in which one function has other code, and the tests that reach the changed line run in it, the quickest first,
until one fails. A test that also fails with the code as it is has noticed nothing, and is not asked again. What no test
notices is printed; the code is 1 when fewer than `GOAL` percent were noticed.
"""

from __future__ import annotations

import argparse
import ast
import functools
import gc
import importlib
import json
import mmap
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "penstock"
TARGETS = ("core/journal/commit", "core/queue/state")
"""What is changed, below src/penstock."""
TESTS = (
    "contract/journal", "contract/queue", "contract/entity", "crash/journal", "crash/queue/test_queue_faults.py",
    "journal/test_call_budget.py", "journal/test_index_steps.py", "journal/test_memtable.py",
    "observe/test_journal_metrics.py", "model/test_surface_model.py",
)  # fmt: skip
"""What should notice, below tests."""
GOAL = 85
"""Percent of the mutants that a test must notice."""
SLOW = 600.0
"""Seconds that a test may take here: what takes longer is left out."""
LONGEST = 20.0
"""Seconds for a mutant's test, beside five times what it took before: one without end was noticed too."""
UNTRIED, SURVIVED, NOTICED, ENDLESS, IMPOSSIBLE = "reached by no test", "survived", "noticed", "endless", "impossible"
Change = Callable[[], ast.AST]

OTHER: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
    ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
"""Operators, and what each becomes."""


# ── mutants ──────────────────────────────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True)
class Mutant:
    """One change: in which file and function, at which line, and which of the file's changes it is."""

    path: Path
    number: int
    function: str
    line: int
    says: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line} {self.function}: {self.says}"


@dataclass
class Site:
    """A node that can be changed, and where it hangs."""

    function: str
    line: int
    node: ast.AST
    replace: Callable[[ast.AST], None]


def sites(tree: ast.AST, names: tuple[str, ...] = (), inside: bool = False, line: int = 0) -> Iterator[Site]:
    """The nodes of a module's functions, in order; not the texts for people, nor what only a type checker reads."""
    for name, value in ast.iter_fields(tree):
        if name in ("args", "decorator_list", "returns", "annotation") and not isinstance(tree, ast.Call):
            continue
        for at, node in enumerate(value if isinstance(value, list) else [value]):
            if not isinstance(node, ast.AST):
                continue
            at_line = node.lineno if isinstance(node, ast.stmt) else line
            if inside:
                yield Site(".".join(names), at_line, node, functools.partial(_hang, tree, name, value, at))
            if isinstance(node, ast.JoinedStr | ast.Raise | ast.Assert) or _is_logging(node):
                continue
            function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            own = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not inside
            below = (*names, node.name) if own else names  # type: ignore[attr-defined]
            yield from sites(node, below, inside or function, at_line)


def _hang(parent: ast.AST, name: str, value: Any, at: int, node: ast.AST) -> None:
    if isinstance(value, list):
        value[at] = node
    else:
        setattr(parent, name, node)


def _is_logging(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and ast.unparse(node).startswith("log.")


def changes(node: ast.AST) -> Iterator[Change]:
    """The ways to change a node: each gives what stands in its place."""
    match node:
        case ast.Compare(left, ops, comparators):
            for at, op in enumerate(ops):
                others = [*ops[:at], OTHER[type(op)](), *ops[at + 1 :]]
                yield functools.partial(ast.Compare, left, others, comparators)
        case ast.BoolOp(op, values):
            yield lambda: ast.BoolOp(OTHER[type(op)](), values)
        case ast.BinOp(left, op, right) if type(op) in OTHER:
            yield lambda: ast.BinOp(left, OTHER[type(op)](), right)
        case ast.UnaryOp(ast.Not(), operand):
            yield lambda: operand
        case ast.Constant(bool() as value):
            yield lambda: ast.Constant(not value)
        case ast.Constant(int() as value):
            yield lambda: ast.Constant(value + 1)
        case ast.If(ast.Name() | ast.Attribute() | ast.Call() | ast.NamedExpr() as test, body, orelse):
            yield lambda: ast.If(ast.UnaryOp(ast.Not(), test), body, orelse)
        case ast.IfExp(ast.Name() | ast.Attribute() | ast.Call() | ast.NamedExpr() as test, body, orelse):
            yield lambda: ast.IfExp(ast.UnaryOp(ast.Not(), test), body, orelse)
        case ast.Break():
            yield ast.Continue
        case ast.Continue():
            yield ast.Break
        case ast.AugAssign(target, op, value):
            yield lambda: ast.AugAssign(target, OTHER[type(op)](), value)
            yield ast.Pass
        case ast.Raise() | ast.Expr(ast.Call()) | ast.Assign([ast.Attribute() | ast.Subscript()]):
            if not _is_logging(node):
                yield ast.Pass


def files_of(target: str) -> list[Path]:
    """The files of a target: a module, or a folder of them."""
    module = (SOURCE / target).with_suffix(".py")
    found = [module] if module.exists() else sorted((SOURCE / target).glob("*.py"))
    if not found:
        sys.exit(f"there is no {target} below {SOURCE}")
    return found


def mutants_of(path: Path) -> list[Mutant]:
    """Everything that can be changed in a file, in order."""
    found: list[Mutant] = []
    for site in sites(ast.parse(path.read_text("utf-8"))):
        for change in changes(site.node):
            before, after = (
                ast.unparse(ast.fix_missing_locations(one)).splitlines()[0] for one in (site.node, change())
            )
            found.append(Mutant(path, len(found), site.function, site.line, f"{before}  →  {after}"))
    return found


def changed_code(mutant: Mutant) -> CodeType:
    """The code of a mutant's file, as a module."""
    tree = ast.parse(mutant.path.read_text("utf-8"))
    number = 0
    for site in sites(tree):
        for change in changes(site.node):
            if number == mutant.number:
                site.replace(ast.copy_location(change(), site.node))
                return compile(ast.fix_missing_locations(tree), str(mutant.path), "exec")
            number += 1
    raise AssertionError(mutant)


def codes_in(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes_in(constant)


def apply(mutant: Mutant) -> bool:
    """Gives every function of the mutant's name the changed code; False where Python does not allow that."""
    new = {(code.co_qualname, code.co_firstlineno): code for code in codes_in(changed_code(mutant))}
    done = False
    for found in gc.get_objects():
        if isinstance(found, FunctionType) and found.__code__.co_filename == str(mutant.path):
            code = found.__code__
            if code.co_qualname == mutant.function:
                try:
                    found.__code__ = new[code.co_qualname, code.co_firstlineno]
                except (KeyError, ValueError):  # it uses other names of the function around it now
                    return False
                done = True
    return done


# ── tests ────────────────────────────────────────────────────────────────────────────────────────────────────────────
@dataclass
class Reach:
    """Which tests reach a line, and how long each took."""

    seconds: dict[int, float] = field(default_factory=dict)
    lines: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))

    def tests(self, mutant: Mutant) -> list[int]:
        """Those that reach a mutant, the quickest first."""
        found = self.lines.get(f"{mutant.path}:{mutant.line}", [])
        known = {test: seconds for test in found if (seconds := self.seconds.get(test, SLOW)) < SLOW}
        return sorted(known, key=lambda test: known[test])


class Run:
    """Takes the place of pytest's loop over the tests it has collected."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.failed = False
        self.outcomes: list[tuple[str, Mutant]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed |= report.failed

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        files = [path for name in self.options.target for path in files_of(name)]
        for path in files:
            importlib.import_module(
                ".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")
            )
        every = [mutant for path in files for mutant in mutants_of(path)]
        chosen = random.Random(self.options.seed).sample(every, min(self.options.mutants, len(every)))
        began = time.monotonic()
        reach = self._learn(session.items, {str(path) for path in files})
        took = time.monotonic() - began
        say(
            f"{len(every)} mutants, {len(chosen)} of them tried, seed {self.options.seed}; tests learnt in {took:.0f} s"
        )
        for mutant in chosen:
            if time.monotonic() - began > 60 * self.options.minutes:
                say("the time is up")
                break
            outcome = self._try(session.items, mutant, reach)
            self.outcomes.append((outcome, mutant))
            if outcome not in (NOTICED, ENDLESS):
                say(f"  {outcome}: {mutant}")
        return True

    def _learn(self, items: list[pytest.Item], files: set[str]) -> Reach:
        """Runs every test in a child and notes the lines that it reaches."""
        with tempfile.TemporaryDirectory(prefix="penstock-mutation-") as folder:
            answer = Path(folder) / "reach"
            pid = forked(lambda: answer.write_text(json.dumps(self._trace(items, files))))
            os.waitpid(pid, 0)
            reach = Reach()
            for test, seconds, lines in json.loads(answer.read_text()):
                reach.seconds[test] = seconds
                for line in lines:
                    reach.lines[line].append(test)
            return reach

    def _trace(self, items: list[pytest.Item], files: set[str]) -> list[tuple[int, float, list[str]]]:
        reached: set[tuple[str, int]] = set()

        def each_line(frame: FrameType, event: str, given: object) -> Any:
            reached.add((frame.f_code.co_filename, frame.f_lineno))
            return each_line

        def each_call(frame: FrameType, event: str, given: object) -> Any:
            return each_line if frame.f_code.co_filename in files else None

        found = []
        for number, item in enumerate(items):
            reached.clear()
            began, self.failed = time.monotonic(), False
            threading.settrace(each_call)
            sys.settrace(each_call)
            self._run_one(item, items[number + 1] if number + 1 < len(items) else None)
            sys.settrace(None)
            if not self.failed:
                lines = sorted(f"{path}:{line}" for path, line in reached.copy())
                found.append((number, time.monotonic() - began, lines))
        return found

    def _try(self, items: list[pytest.Item], mutant: Mutant, reach: Reach) -> str:
        while tests := reach.tests(mutant):
            at = mmap.mmap(-1, 8)
            code = ended(forked(functools.partial(self._notice, items, mutant, tests, reach, at)))
            if code in (0, 3):
                return IMPOSSIBLE if code else SURVIVED
            test = int.from_bytes(at[:])
            if ended(forked(functools.partial(self._notice, items, None, [test], reach, at))) == 0:
                return ENDLESS if code == -signal.SIGALRM else NOTICED
            say(f"  fails as it is: {items[test].nodeid}")
            del reach.seconds[test]
        return UNTRIED

    def _notice(
        self, items: list[pytest.Item], mutant: Mutant | None, tests: list[int], reach: Reach, at: mmap.mmap
    ) -> None:
        """Runs tests until one fails, and leaves its number in `at`."""
        if mutant is not None and not apply(mutant):
            os._exit(3)
        for number, test in enumerate(tests):
            at[:] = test.to_bytes(8)
            signal.setitimer(signal.ITIMER_REAL, LONGEST + 5 * reach.seconds[test])  # its end is the process's
            self._run_one(items[test], items[tests[number + 1]] if number + 1 < len(tests) else None)
            if self.failed:
                os._exit(1)

    def _run_one(self, item: pytest.Item, after: pytest.Item | None) -> None:
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)


def forked(body: Callable[[], object]) -> int:
    """Runs something in a child with a group of its own and nothing to say; returns its process id."""
    if pid := os.fork():
        return pid
    code = 2
    try:
        os.setsid()
        silent = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(silent, stream)
        body()
        code = 0
    finally:
        os._exit(code)


def ended(pid: int) -> int:
    """How a child ended; what its tests have started ends with it."""
    _, status = os.waitpid(pid, 0)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(status)


def say(text: str) -> None:
    print(text, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="torture.mutation", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mutants", type=int, default=300)
    parser.add_argument("--minutes", type=float, default=10_000)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--target", action="append", help=f"instead of {', '.join(TARGETS)}")
    options = parser.parse_args()
    options.target = options.target or list(TARGETS)
    run = Run(options)
    os.chdir(ROOT)
    quiet = ["-s", "-o", "addopts=", "-p", "no:terminal", "-m", "not slow", "--hypothesis-profile=first"]
    code = pytest.main([*quiet, *(f"tests/{name}" for name in TESTS)], plugins=[run])
    tried = Counter(outcome for outcome, _ in run.outcomes)
    real = len(run.outcomes) - tried[IMPOSSIBLE]
    if code or not real:
        say(f"pytest ended with {code}, {real} mutants tried")
        return 2
    score = 100 * (tried[NOTICED] + tried[ENDLESS]) / real
    for target in options.target:
        say(f"{target}: {dict(Counter(one for one, mutant in run.outcomes if target in str(mutant.path)))}")
    say(f"{score:.1f} % of {real} mutants were noticed; the goal is {GOAL} %")
    return int(score < GOAL)


if __name__ == "__main__":
    sys.exit(main())
