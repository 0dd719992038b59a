"""The walk from causes to effects that every picture of a correlation is drawn along."""

from __future__ import annotations

from penstock.core.entity.causality import WalkStep, walk


def test_a_walk_goes_down_whole_branches_in_the_order_of_the_events() -> None:
    causes = {"a": None, "b": "a", "c": "a", "d": "b", "e": "elsewhere", "f": "f"}
    assert list(walk(causes)) == [
        WalkStep("a", None, 0, 1),
        WalkStep("b", "a", 0, 2),
        WalkStep("d", "b", 0, 1),
        WalkStep("c", "a", 1, 2),
        WalkStep("e", None, 0, 1),
        WalkStep("f", None, 0, 1),
    ]


def test_a_loop_of_causes_is_entered_at_its_first_event_and_left_again() -> None:
    causes = {"a": "c", "b": "a", "c": "b", "d": "b"}
    assert [step.id for step in walk(causes)] == ["a", "b", "c", "d"]


def test_a_long_chain_is_walked_without_recursion() -> None:
    causes = {str(number): str(number - 1) if number else None for number in range(20_000)}
    assert [step.id for step in walk(causes)] == list(causes)
