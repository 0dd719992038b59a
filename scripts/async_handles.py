"""Makes src/penstock/aio/handles.py: the handles of penstock.surface for event loops, with the same names.

    python scripts/async_handles.py

A method becomes a coroutine that runs the one for threads beside the loop, an iterator an `async for`. The tables below
say which methods need no thread, which have a form of their own for event loops, and which are left out.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SURFACE = ROOT / "src" / "penstock" / "surface"
PAGE = ROOT / "src" / "penstock" / "aio" / "handles.py"
SOURCES = {
    "Journal": SURFACE / "journal.py",
    "Topic": SURFACE / "topic.py",
    "Queue": SURFACE / "queue.py",
    "Delivery": SURFACE / "delivery.py",
    "Outbox": ROOT / "src" / "penstock" / "entity" / "outbox.py",
}
AT_ONCE = {"topic", "outbox", "worker", "react", "gate", "ungate", "as_", "stage", "clear"}
"""They neither wait nor look at the store."""
OWN = ("penstock.surface.topic", "penstock.surface.queue", "penstock.surface.journal", "penstock.surface.delivery")
LEFT_OUT = {"transaction", "fence", "submit", "submit_many", "try_submit", "try_submit_many", "receive", "push"}
"""They belong to a thread, or `append` in a task of its own does the same; `receive` and `push` are written by hand."""
NATIVE = {
    ("Topic", "append"): "submitted(lambda: self._sync.try_submit({}))",
    ("Topic", "append_many"): "submitted(lambda: self._sync.try_submit_many({}))",
    ("Outbox", "flush"): "in_thread(self._sync.flush)",
    ("Queue", "take"): "self._sync.take_async({})",
    ("Queue", "take_many"): "self._sync.take_many_async({})",
    ("Delivery", "ack"): "self._sync.ack_async({})",
    ("Delivery", "nack"): "self._sync.nack_async({})",
}
LOOKS = {("Topic", "latest"), ("Topic", "oldest"), ("Topic", "settings"), ("Queue", "policy")}
"""Properties that look at the store: they are awaited."""
FIELDS = {"Journal": ["clock"], "Topic": ["name"], "Queue": ["name"], "Delivery": ["event", "attempt"], "Outbox": []}
EXTRA = {
    "Journal": """
    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
""",
    "Topic": '''
    async def length(self) -> int:
        """How many events are stored."""
        return await in_thread(len, self._sync)
''',
    "Queue": '''
    async def length(self) -> int:
        """Messages that are ready, in flight or delayed."""
        return await in_thread(len, self._sync)

    def __aiter__(self) -> AsyncGenerator[Event[PayloadT], None]:
        return in_pieces(self._sync.__iter__)

    @overload
    async def push(
        self, payload: PayloadT, *, reply: Literal[False] = False, **options: Unpack[PushArguments]
    ) -> Receipt: ...

    @overload
    async def push(
        self, payload: PayloadT, *, reply: Literal[True], **options: Unpack[PushArguments]
    ) -> ResultTicket: ...

    async def push(
        self, payload: PayloadT, *, reply: bool = False, **options: Unpack[PushArguments]
    ) -> Receipt | ResultTicket:
        """Adds a message and returns when it is durable; with `reply`, a ticket for what its handler returns.

        The options are those of `penstock.Queue.push`.
        """
        if reply:
            return await in_thread(lambda: self._sync.push(payload, reply=True, **options))
        return await in_thread(lambda: self._sync.push(payload, **options))

    def receive(self, *, wait: Seconds | None = 0, **options: Unpack[TakeArguments]) -> AsyncReceiver[PayloadT]:
        """`async with` it for one message or None, `async for` one after the other; options are those of `take`.

        An `async with` block acknowledges its message, or gives it back with the error that left the block.
        """
        return AsyncReceiver(self, wait, options)
''',
    "Delivery": """
    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        await self._sync.__aexit__(kind, error, trace)
""",
    "Outbox": """
    def __len__(self) -> int:
        return len(self._sync)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        if kind is None:
            await self.flush()
        else:
            self.clear()
""",
}
HANDLES = re.compile(r"\b(Journal|Topic|Queue|Delivery|Outbox)\b")
HEAD = '''"""The handles for event loops. Made by scripts/async_handles.py: change that, or the handle for threads."""

from __future__ import annotations

'''

RUNTIME = {
    "from typing import TYPE_CHECKING, Generic, TypeVar, overload",
    "from penstock.schema import PayloadT",
    "from penstock.aio.running import AsyncHandle, AsyncReceiver, in_pieces, in_thread, plain, submitted",
    "from penstock.entity.outbox import Outbox",
    "from penstock.surface.delivery import Delivery",
    "from penstock.surface.journal import Journal",
    "from penstock.surface.queue import DEFAULT_GROUP, Queue",
    "from penstock.surface.topic import Topic",
}
"""What is imported when the module is; the rest is for type checkers."""


def renamed(annotation: str) -> str:
    """An annotation with the handles for event loops."""
    return HANDLES.sub(r"Async\1", annotation)


def forwarded(arguments: ast.arguments) -> str:
    """The arguments of a method as it passes them on."""

    def value(one: ast.arg) -> str:
        mentions = one.annotation is not None and HANDLES.search(ast.unparse(one.annotation))
        return f"plain({one.arg})" if mentions else one.arg

    given = [value(one) for one in arguments.args[1:]]
    given += [f"{one.arg}={value(one)}" for one in arguments.kwonlyargs]
    if arguments.kwarg is not None:
        given.append(f"**{arguments.kwarg.arg}")
    return ", ".join(given)


def wrapped(returns: str, call: str) -> str:
    """What a call gives, with handles for event loops."""
    returns = returns.replace("[PayloadT]", "")
    kind = HANDLES.search(returns)
    if kind is None:
        return f"return {call}"
    made = f"Async{kind[1]}"
    if returns == kind[1]:
        return f"return {made}({call})"
    if returns == f"{kind[1]} | None":
        return f"found = {call}\n        return None if found is None else {made}(found)"
    return f"return [{made}(one) for one in {call}]"


def method(owner: str, source: ast.FunctionDef) -> str:
    """A method for event loops."""
    signature = renamed(ast.unparse(source.args))
    returns = ast.unparse(source.returns) if source.returns is not None else "None"
    given, text = forwarded(source.args), ast.get_docstring(source, clean=False)
    said = f'        """{text}"""\n'
    if source.name in AT_ONCE:
        body = wrapped(returns, f"self._sync.{source.name}({given})")
        return f"    def {source.name}({signature}) -> {renamed(returns)}:\n{said}        {body}\n"
    if returns.startswith("Iterator["):
        given = f", {given}" if given else ""
        gives = f"AsyncGenerator[{returns.removeprefix('Iterator[').removesuffix(']')}, None]"
        body = f"return in_pieces(self._sync.{source.name}{given})"
        return f"    def {source.name}({signature}) -> {gives}:\n{said}        {body}\n"
    native = NATIVE.get((owner, source.name))
    if native is not None:
        call = f"await {native.format(given)}"
    elif source.args.kwarg is not None:
        call = f"await in_thread(lambda: self._sync.{source.name}({given}))"
    else:
        call = f"await in_thread(self._sync.{source.name}{', ' if given else ''}{given})"
    body = call if returns == "None" else wrapped(returns, call)
    return f"    async def {source.name}({signature}) -> {renamed(returns)}:\n{said}        {body}\n"


def look(owner: str, source: ast.FunctionDef) -> str:
    """A property: one that looks at the store gives an awaitable."""
    returns = ast.unparse(source.returns) if source.returns is not None else "None"
    said = f'        """{ast.get_docstring(source, clean=False)}"""\n'
    if (owner, source.name) in LOOKS:
        body = f"return in_thread(lambda: self._sync.{source.name})"
        return f"    @property\n    def {source.name}(self) -> Awaitable[{returns}]:\n{said}        {body}\n"
    body = wrapped(returns, f"self._sync.{source.name}")
    return f"    @property\n    def {source.name}(self) -> {renamed(returns)}:\n{said}        {body}\n"


def handle(owner: str, tree: ast.Module) -> str:
    """A class of handles for event loops."""
    (source,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == owner)
    text = (ast.get_docstring(source) or "").split("\n")[0]
    of, bases = owner, ""
    if any(ast.unparse(base) == "Generic[PayloadT]" for base in source.bases):
        of, bases = f"{owner}[PayloadT]", ", Generic[PayloadT]"
    parts = [f'class Async{owner}(AsyncHandle[{of}]{bases}):\n    """{text}"""\n\n    __slots__ = ()\n']
    types = {one.target.id: ast.unparse(one.annotation) for one in ast.walk(source) if is_field(one)}
    for name in FIELDS[owner]:
        kind = types.get(name, {"clock": "Clock", "name": "str", "event": "Event", "attempt": "int"}[name])
        parts.append(f"    @property\n    def {name}(self) -> {kind}:\n        return self._sync.{name}\n")
    for node in source.body:
        if not isinstance(node, ast.FunctionDef) or node.name.startswith("_") or node.name in LEFT_OUT:
            continue
        decorators = {ast.unparse(one) for one in node.decorator_list}
        if "overload" in decorators:
            continue
        parts.append(look(owner, node) if "property" in decorators else method(owner, node))
    parts.append(EXTRA[owner].strip("\n") + "\n")
    return "\n".join(parts)


def is_field(node: ast.AST) -> bool:
    return isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)


def page() -> str:
    """The module."""
    trees = {owner: ast.parse(file.read_text("utf-8")) for owner, file in SOURCES.items()}
    body = "\n\n".join(handle(owner, tree) for owner, tree in trees.items())
    wanted = set(re.findall(r"\b[A-Za-z_]\w*\b", body))
    lines: set[str] = set()
    constants: dict[str, str] = {}
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module not in ("__future__", *OWN):
                names = [one.name for one in node.names if one.name in wanted and one.asname is None]
                lines |= {f"from {node.module} import {name}" for name in names}
            elif isinstance(node, ast.Import):
                lines |= {
                    f"import {one.name} as {one.asname}" if one.asname else f"import {one.name}"
                    for one in node.names
                    if (one.asname or one.name) in wanted
                }
        for node in tree.body:
            if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("TypeVar("):
                constants[ast.unparse(node.targets[0])] = ast.unparse(node)
    lines |= {"from collections.abc import AsyncGenerator, Awaitable", "from typing import Self, Unpack"}
    lines |= {"from penstock.clock import Clock", "from penstock.entity.projection import Projection"}
    now = {line for line in lines if line.startswith("from penstock.limits ")} | RUNTIME
    later = "\n".join(f"    {line}" for line in sorted(lines - now))
    used = [text for name, text in sorted(constants.items()) if re.search(rf"type\[{name}\]", body)]
    head = HEAD + "\n".join(sorted(now)) + "\n\nif TYPE_CHECKING:\n" + later
    made = head + "\n\n" + "\n".join(used) + "\n\n" + body
    for words in (["check", "--fix-only", "--select", "I,F401,UP"], ["format"]):
        command = [sys.executable, "-m", "ruff", *words, "--stdin-filename", str(PAGE), "-", "--quiet"]
        made = subprocess.run(command, input=made, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    return made


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
