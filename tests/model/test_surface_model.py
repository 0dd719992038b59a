"""One random program over the public surface, run at once wherever a journal may be: every answer and every error is
the same in memory, in SQLite and behind a server, and is what a plain-Python model says. Each other engine runs it too.

The program appends, reads, follows, folds, pushes, takes, settles, drops, closes, crashes, and moves the clock.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, run_state_machine_as_test

from model.homes import Home, Raised, ServedHome, Step, step
from model.queue_model import WAITS
from model.queue_rules import STYLES, QueueRules
from model.refused_questions import questions
from model.topic_model import Positions
from model.topic_rules import WHICH, TopicRules, drafts
from nightly import examples
from penstock import Draft, ManualClock
from penstock.core.engine.url import ENGINES, other_engines
from penstock.core.journal import commit
from penstock.core.queue.operations import take
from server.over_http.shared_server import SharedServer

ALONE = sorted(name for name, entry in other_engines().items() if entry.group == ENGINES)
"""Engines that are no part of the lockstep: what is special to them is below the surface."""


PROGRAMS: dict[str, tuple[str, ...]] = {
    "topics": (),
    "work": tuple(style for style in STYLES if "keyed" not in style and "fanout" not in style),
    "keyed": tuple(style for style in STYLES if "keyed" in style and "fanout" not in style),
    "fanout": tuple(style for style in STYLES if "fanout" in style),
}
"""What a program is about: few examples of one kind are more different from each other than many of all kinds."""
POLICY: dict[str, Any] = {
    "max_attempts": 3,
    "dead_letter": None,
    "retry": None,
    "max_in_flight": None,
    "max_size": None,
    "rate": None,
    "breaker": None,
    "retention": "hold",
}


class Surface(QueueRules):
    """Everything one or two processes do to a journal."""

    schemes: tuple[str, ...] = ("memory", "sqlite", "http")
    styles: tuple[str, ...] = STYLES
    """Of the program's queue; without any it has none."""
    server: SharedServer | None = None

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-model-"))
        self.clock = ManualClock()
        self.positions = Positions()
        self.topics = {}
        self.marks = {}
        self.following = None
        self.handed = []
        self.jobs = None  # type: ignore[assignment]
        self.steps = 0
        self.with_topics = True
        self.homes = [self.home(scheme) for scheme in self.schemes]

    def home(self, scheme: str) -> Home:
        if scheme == "http":
            assert self.server is not None
            return ServedHome(self.server, self.clock, self.folder, self.positions.id_of)
        return Home(scheme, self.clock, self.folder, self.positions.id_of)

    def teardown(self) -> None:
        self.stop_following()
        for home in self.homes:
            home.close()
        shutil.rmtree(self.folder)

    @initialize(
        data=st.data(),
        policy=st.fixed_dictionaries(
            {
                "max_attempts": st.integers(1, 3),
                "dead_letter": st.sampled_from([None, "grave"]),
                "retry": st.sampled_from(list(WAITS)),
                "max_in_flight": st.sampled_from([None, None, None, 3]),
                "max_size": st.sampled_from([None, None, 12]),
                "rate": st.sampled_from([None, None, None, None, "3/10s"]),
                "breaker": st.sampled_from([None, None, None, "2/20s"]),
                "retention": st.sampled_from(["hold", "dead_letter"]),
            }
        ),
        at_once=st.sampled_from([1, 1, 2, 3]),
        per_key=st.sampled_from([None, None, 1, 2]),
        drafts=st.lists(drafts, min_size=2, max_size=8),
        topics=st.sampled_from([False, False, True]),
    )
    def begin(
        self,
        data: st.DataObject,
        policy: dict[str, Any],
        at_once: int,
        per_key: int | None,
        drafts: list[Draft],
        topics: bool,
    ) -> None:
        assert self.ask(lambda home: home.journal(0).topics()) == []
        self.append_drafts("a", drafts)
        if self.styles:
            self.begin_queue(data.draw(st.sampled_from(self.styles)), policy, at_once, per_key)
            self.with_topics = topics

    def wants(self, step: Step) -> bool:
        return self.with_topics or not hasattr(TopicRules, step.name)

    # ── time, closing, crashing ──────────────────────────────────────────────────────────────────────────────────────
    @step(5, by=st.sampled_from([0.001, 1, 4, 7, 20, 31, 100, 1000, -0.5, -40, -5000]))
    def time_passes(self, by: float) -> None:
        if self.jobs is not None:
            by = min(abs(by), 31)  # leases are promised nothing of a clock that goes back; replies are kept for an hour
        self.clock.advance(by)
        if self.jobs is not None:
            self.jobs.now = self.clock.now_ms()
        self.remove_what_is_too_old()

    @step(2, which=WHICH, abandon=st.booleans())
    def reopen(self, which: int, abandon: bool) -> None:
        self.stop_following()
        for home in self.homes:
            home.reopen(which, abandon=abandon)
        self.lose_handles(which if len(self.homes[0].stores) > 1 else None)

    @step(1)
    def crash(self) -> None:
        self.stop_following()
        for home in self.homes:
            home.crash()
        self.lose_handles(None)

    # ── what must agree ──────────────────────────────────────────────────────────────────────────────────────────────
    @invariant()
    def agree(self) -> None:
        """Everything is looked at after every fourth step, through one opening or the other; a server is asked now and
        then, because what it answered to the step itself was compared already."""
        if self.jobs is not None:
            self.rows_agree()
            self.jobs.expire()
            for name in self.jobs.current():
                self.jobs.eligible(name)  # whose turn it is, and whose key, is settled as messages become ready
        self.steps += 1
        if self.steps % 4:
            return
        homes = [home for home in self.homes if not home.served or self.steps % 12 == 0]
        which = self.steps // 4 % 2
        self.topics_agree(homes, which)
        if self.jobs is not None:
            self.queue_agrees(homes, which)


@pytest.fixture(scope="module")
def server() -> Iterator[SharedServer]:
    server = SharedServer()
    yield server
    server.close()


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short topics are merged as well, and two messages behind a busy key are set aside as a run."""
    monkeypatch.setattr(commit, "MERGE_FAN_IN", 5)
    monkeypatch.setattr(take, "SHORTEST_RUN", 2)


def run(machine: type[RuleBasedStateMachine], count: int, **options: Any) -> None:
    quiet = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine,
        settings=settings(
            max_examples=examples(count),
            stateful_step_count=60,
            deadline=None,
            suppress_health_check=quiet,
            **options,
        ),
    )


@pytest.mark.parametrize(("about", "count"), [("topics", 16), ("work", 14), ("keyed", 10), ("fanout", 10)])
def test_a_journal_answers_the_same_in_memory_in_sqlite_and_behind_a_server(
    server: SharedServer, about: str, count: int
) -> None:
    run(type("Together", (Surface,), {"server": server, "styles": PROGRAMS[about]}), count)


@pytest.mark.parametrize("scheme", ALONE)
def test_a_journal_on_every_other_engine_answers_as_the_model_says(scheme: str) -> None:
    run(type(scheme.title(), (Surface,), {"schemes": (scheme,)}), 6)


def test_what_one_home_alone_has_is_found_out(server: SharedServer) -> None:
    """Agreement would mean nothing if a difference went unseen."""
    for odd, name in itertools.product(range(3), ["event", "message", "delivery"]):
        homes = type("Together", (Surface,), {"server": server})()
        homes.begin_queue("plain", POLICY, 1, None)
        homes.append_drafts("a", [Draft("paid")])
        homes.push(0, 1, 0, 0, None, None, False, "many", "a")
        store = homes.homes[odd].store(1)
        try:
            homes.steps = 11
            homes.agree()
            if name == "event":
                store.topic("a").append("paid")
            elif name == "message":
                store.queue("jobs").push(0)
            else:
                store.queue("jobs").take()
            homes.steps = 11
            with pytest.raises(AssertionError):
                homes.agree()
        finally:
            homes.teardown()


@pytest.mark.parametrize("style", ["plain", "fanout-keyed"])
def test_every_home_refuses_what_cannot_be_asked_with_the_same_error(server: SharedServer, style: str) -> None:
    homes = type("Together", (Surface,), {"server": server})()
    homes.begin_queue(style, POLICY, 1, None)
    try:
        for filled in (False, True):
            if filled:
                homes.ask(lambda home: home.journal(0).topic("a").append("paid", 1, key="x"))
                homes.ask(lambda home: home.journal(0).queue("jobs").push(1))
            before = homes.ask(lambda home: home.journal(0).topic("jobs").latest)
            for name, question, error in questions():
                answer = homes.ask(lambda home, question=question: question(home.journal(0)))
                assert isinstance(answer, Raised) and answer.error is error, name
            assert homes.ask(lambda home: home.journal(0).topic("jobs").latest) == before
    finally:
        homes.teardown()
