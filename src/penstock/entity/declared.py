"""Gates that are found by name: declared in a module, for whichever process writes to their topics.

A function given to `Topic.gate` belongs to one open journal. Spark's commit to a local journal runs in a process of its
own, and a served journal is written by its server; both find declared gates by name: those that installed packages name
in the entry point group `penstock.gates`, and those that a write, a pipeline or `penstock serve` names.
"""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import FunctionType, ModuleType

import msgspec

from penstock.entity.gate import Check, Gates, kinds_of
from penstock.errors import ConfigError
from penstock.events import Draft
from penstock.names import check_name

GROUP = "penstock.gates"
"""The entry point group of gates that bind wherever their package is installed."""
_LIKE = "shop.rules:only_positive"


class DeclaredGate(msgspec.Struct, frozen=True):
    """A gate that knows its topics; still callable, for tests and for `Topic.gate`."""

    check: FunctionType
    topics: tuple[str, ...]
    kinds: frozenset[str] | None = None
    record: str | None = None

    def __call__(self, draft: Draft) -> None:
        self.check(draft)

    @property
    def name(self) -> str:
        """What others find it by: `module:name`, or `file.py:name` where the file is no module that can be imported."""
        module, title = self.check.__module__, self.check.__qualname__
        if "<" in title:
            raise ConfigError(f"the gate {title} cannot be found by its name: declare it at the top level of a module")
        found = sys.modules.get(module)
        if found is None or found.__spec__ is None or module == "__main__":
            file = None if found is None else found.__file__
            if file is None:
                raise ConfigError(f"the gate {title} is in no file that another process could read")
            module = str(Path(file).resolve())
        return f"{module}:{title}"


def gate(
    *topics: str, kind: str | type | Iterable[str | type] | None = None, record: str | None = None
) -> Callable[[Check], DeclaredGate]:
    """Declares a gate of topics (or queues) that is found by name, in whichever process writes to them.

        @gate("orders", kind="placed", record="refusals")
        def only_positive(draft):
            if draft.payload["total"] <= 0:
                raise Denied("a total must be positive")

    It binds Spark's writes that name it (`gates=` of a flow, the sink's option `gates`) and a server that was started
    with `penstock serve --gates shop.rules:only_positive`; named in the entry point group `penstock.gates` of an
    installed package, every write of Spark's and every server. `kind` and `record` are those of `Topic.gate`.
    """
    if not topics or not all(isinstance(name, str) for name in topics):
        raise ConfigError('a gate is declared for topics: @gate("orders")')
    for name in topics:
        check_name(name, "topic")
    if record is not None and check_name(record, "topic") in topics:
        raise ConfigError(f"the refusals of topic {record!r} cannot be recorded in itself: name another topic")
    kinds = kinds_of(kind)

    def declare(check: Check) -> DeclaredGate:
        if not isinstance(check, FunctionType):
            raise ConfigError(f"@gate(…) goes above a function that takes a draft, not {check!r:.80}")
        return DeclaredGate(check, topics, kinds, record)

    return declare


def check_gate_names(names: Iterable[str]) -> tuple[str, ...]:
    """Names as they were given; ConfigError for one that is none, or that is there twice."""
    found: list[str] = []
    for name in names:
        place, colon, title = name.rpartition(":")
        if not place or not colon or not title:
            raise ConfigError(f"a gate is named module:name, like {_LIKE}, not {name!r}")
        if name in found:
            raise ConfigError(f"the gate {name} is named twice")
        found.append(name)
    return tuple(found)


@cache
def installed_gates() -> tuple[str, ...]:
    """The names of the gates that installed packages declare; searched for once."""
    return tuple(sorted({entry.value.replace(" ", "") for entry in entry_points(group=GROUP)}))


def with_installed(names: Iterable[str]) -> tuple[str, ...]:
    """Names that were given, after those of installed packages; ConfigError for one that was given twice."""
    return tuple(dict.fromkeys((*installed_gates(), *check_gate_names(names))))


def load_gates(names: Iterable[str]) -> dict[str, DeclaredGate]:
    """Gates by their names; ConfigError says which cannot be had and why."""
    return {name: _load(name) for name in names}


def add_gates(gates: Gates, declared: Mapping[str, DeclaredGate]) -> None:
    """Has gates bind what is written through a journal."""
    for name, one in declared.items():
        for topic in one.topics:
            gates.add(topic, one, kind=one.kinds, name=name, record=one.record)


def names_in(described: Mapping[str, Iterable[str]]) -> set[str]:
    """The names of gates in what a journal says of its own."""
    return {text.split(" ", 1)[0] for texts in described.values() for text in texts}


def _load(name: str) -> DeclaredGate:
    place, _, title = name.rpartition(":")
    found: object = _run_file(name, Path(place)) if place.endswith(".py") else _import(name, place)
    for part in title.split("."):
        found = getattr(found, part, None)
    if found is None:
        raise ConfigError(f"the gate {name} is not there: {place} has no {title}")
    if not isinstance(found, DeclaredGate):
        raise ConfigError(f'{name} is no gate: put @penstock.gate("orders") above it, which says whose drafts it sees')
    return found


def _import(name: str, module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module}.".startswith(f"{error.name}."):
            raise ConfigError(
                f"the gate {name} cannot be imported: there is no module {error.name!r} where this Python searches "
                "(PYTHONPATH, installed packages)"
            ) from None
        raise _broken(name, error) from error
    except Exception as error:
        raise _broken(name, error) from error


def _run_file(name: str, file: Path) -> ModuleType:
    """The names of a file that cannot be imported, as a pipeline's."""
    module = ModuleType(f"penstock_gates_{file.stem}")
    module.__file__ = str(file)
    sys.modules[module.__name__] = module  # what the file declares asks there which file it is in
    try:
        exec(compile(file.read_bytes(), str(file), "exec", dont_inherit=True), vars(module))
    except FileNotFoundError as error:
        if error.filename == str(file):
            raise ConfigError(f"the gate {name} cannot be read: there is no file {file}") from None
        raise _broken(name, error) from error
    except Exception as error:
        raise _broken(name, error) from error
    finally:
        del sys.modules[module.__name__]
    return module


def _broken(name: str, error: Exception) -> ConfigError:
    line = traceback.extract_tb(error.__traceback__)[-1]
    return ConfigError(f"the gate {name} cannot be imported: {error!r} ({line.filename}, line {line.lineno})")
