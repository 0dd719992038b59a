"""A program: the steps that a seed draws, played in a world that knows what must come of each; and the smallest program
that still fails.

Steps are plain values, drawn without a look at the world: `share=0.5` and not "the event at 17". So a step means
something wherever it stands, any part of a program is a program too, and a failure is a seed and a list of steps.
"""

from __future__ import annotations

import random
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, TypeVar

Draw = Callable[[random.Random], Any]
F = TypeVar("F", bound=Callable[..., None])


class Rule(NamedTuple):
    """A kind of step: how often it is drawn, and how its arguments are."""

    weight: int
    given: Mapping[str, Draw]


def rule(weight: int, **given: Draw) -> Callable[[F], F]:
    """Makes a method of a world a kind of step."""

    def note(method: F) -> F:
        method.rule = Rule(weight, given)  # type: ignore[attr-defined]
        return method

    return note


def one_of(*values: object) -> Draw:
    return lambda chance: chance.choice(values)


def a_share(chance: random.Random) -> float:
    """A share of what there is."""
    return chance.choice([0.0, 1.0, round(chance.random(), 2), round(chance.random(), 2)])


def a_seed(chance: random.Random) -> int:
    return chance.randrange(1000)


@dataclass(frozen=True)
class Step:
    """One step; `look`: whether everything is compared after it, which also fills caches."""

    name: str
    given: dict[str, Any]
    look: bool

    def __str__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self.given.items())
        return f"{self.name}({given}){'' if self.look else '  # unseen'}"


@dataclass(frozen=True)
class Program:
    """What a seed draws: what the world is like, and the steps in it."""

    seed: int
    world: Mapping[str, Any]
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        world = ", ".join(f"{name}={value!r}" for name, value in self.world.items())
        return "\n".join([f"seed {self.seed}: {world}", *(f"  {step}" for step in self.steps)])


class World(Protocol):
    """Where steps are done: its rules are methods."""

    def look(self, *, whole: bool) -> None:
        """Raises when anything is not as it must be; without `whole`, a part of everything is looked at."""

    def close(self) -> None: ...


@dataclass
class Failure:
    """What went wrong, in which program and after which step."""

    program: Program
    at: int
    error: BaseException
    told: str = field(repr=False, default="")

    @property
    def kind(self) -> tuple[object, ...]:
        """What two failures of one cause have in common."""
        return type(self.error), str(self.error).partition(":")[0] if isinstance(self.error, Different) else ""

    def __str__(self) -> str:
        return f"{self.program}\nafter step {self.at + 1} of {len(self.program.steps)}:\n{self.told}"


class Different(AssertionError):
    """Two ways to ask for the same, or a way and the model, have different answers; the text begins with the way."""


def rules_of(world: type) -> dict[str, Rule]:
    return {name: method.rule for name, method in vars(world).items() if hasattr(method, "rule")}


def draw(rules: Mapping[str, Rule], places: Mapping[str, Draw], seed: int) -> Program:
    """The program of a seed."""
    chance = random.Random(seed)
    world = {name: one(chance) for name, one in places.items()}
    # A program does a few things often rather than everything once: what goes wrong between two is then likelier.
    weights = [one.weight * chance.choice([0, 1, 1, 3]) for one in rules.values()]
    if not any(weights):
        weights = [one.weight for one in rules.values()]
    steps = []
    usual = max(rules, key=lambda name: rules[name].weight)  # little happens to a world in which there is nothing
    for name in [usual, usual, *chance.choices(list(rules), weights, k=chance.randint(3, 14))]:
        given = {argument: one(chance) for argument, one in rules[name].given.items()}
        steps.append(Step(name, given, chance.random() < 0.4))
    return Program(seed, world, tuple(steps))


def play(make: Callable[[Program], World], program: Program) -> Failure | None:
    """Plays a program to its end, looks at everything there, and says what went wrong."""
    at = 0
    try:
        world = make(program)
        try:
            for at, step in enumerate(program.steps):
                getattr(world, step.name)(**step.given)
                if (last := at == len(program.steps) - 1) or step.look:
                    world.look(whole=last)
        finally:
            world.close()
    except Exception as error:
        return Failure(program, at, error, "".join(traceback.format_exception(error)[-12:]))
    return None


def smallest(make: Callable[[Program], World], failure: Failure, seconds: float = 60) -> Failure:
    """The failure of as small a program as is found in time."""
    until = time.monotonic() + seconds
    found = failure
    found = _try(make, found, replace(found.program, steps=found.program.steps[: found.at + 1])) or found
    smaller = True
    while smaller:
        smaller = False
        for program in _smaller(found.program):
            if time.monotonic() > until:
                return found
            better = _try(make, found, program)
            if better is not None:
                found, smaller = better, True
                break
    return found


def _try(make: Callable[[Program], World], known: Failure, program: Program) -> Failure | None:
    failure = play(make, program)
    return failure if failure is not None and failure.kind == known.kind else None


def _smaller(program: Program) -> Iterator[Program]:
    """Programs with fewer steps, then with smaller ones."""
    steps = program.steps
    size = len(steps) // 2
    while size:
        for at in range(0, len(steps), size):
            yield replace(program, steps=steps[:at] + steps[at + size :])
        size //= 2
    for at, step in enumerate(steps):
        for simpler in _simpler(step):
            yield replace(program, steps=(*steps[:at], simpler, *steps[at + 1 :]))


def _simpler(step: Step) -> Iterator[Step]:
    if step.look:
        yield replace(step, look=False)
    for name, value in step.given.items():
        if isinstance(value, int) and not isinstance(value, bool):
            for less in sorted({value // 2, value - 1} - {value}):
                if less >= 0:
                    yield replace(step, given={**step.given, name: less})
        elif isinstance(value, bool) and value:
            yield replace(step, given={**step.given, name: False})


def play_all(
    make: Callable[[Program], World],
    programs: Iterator[Program],
    *,
    tell: Callable[[Failure], None],
    most: int = 10,
) -> int:
    """Plays programs until so many have failed, and returns how many; each kind of failure is shrunk and told once."""
    kinds: set[tuple[object, ...]] = set()
    failed = 0
    for program in programs:
        failure = play(make, program)
        if failure is None:
            continue
        failed += 1
        if failure.kind not in kinds:
            kinds.add(failure.kind)
            tell(smallest(make, failure))
        if failed >= most:
            break
    return failed


def same(way: str, answer: object, wanted: object) -> None:
    """Raises when a way to ask has another answer than it must."""
    if answer != wanted:
        raise Different(f"{way}: {_shown(answer)}\n  instead of {_shown(wanted)}")


def _shown(answer: object) -> str:
    text = repr(answer)
    size = f" ({len(answer)})" if isinstance(answer, Sequence) else ""
    return text[:700] + ("…" if len(text) > 700 else "") + size
