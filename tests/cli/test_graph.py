"""`graph`: what caused what."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock
from cli.commandline import Cli
from penstock.core.clock import ManualClock


@pytest.fixture
def chain(url: str) -> list[penstock.Receipt]:
    """An order, two effects of it, and an effect of the first effect."""
    clock = ManualClock()  # what different topics record in one millisecond has no order
    with penstock.open(url, clock=clock) as journal:
        order = journal.topic("orders").append("placed", {"order": 1})
        paid = journal.topic("payments").append("paid", cause=order)
        clock.advance(0.001)
        mailed = journal.topic("mails").append("mailed", cause=order)
        shipped = journal.topic("shipments").append("shipped", cause=paid)
        journal.topic("orders").append("placed", {"order": 2})
    return [order, paid, mailed, shipped]


def test_effects_hang_below_their_causes(cli: Cli, chain: list[penstock.Receipt]) -> None:
    lines = cli("graph", chain[0].id).out.splitlines()
    assert len(lines) == 4
    assert "placed" in lines[0]
    assert lines[1].startswith("├─ ") and "paid" in lines[1]
    assert lines[2].startswith("│  └─ ") and "shipped" in lines[2]
    assert lines[3].startswith("└─ ") and "mailed" in lines[3]


def test_the_id_of_any_event_of_the_chain_will_do(cli: Cli, chain: list[penstock.Receipt]) -> None:
    assert cli("graph", chain[3].id).out == cli("graph", chain[0].id).out


def test_machines_get_the_events(cli: Cli, chain: list[penstock.Receipt]) -> None:
    said = cli("graph", chain[0].id, "--json").documents
    assert {event["id"] for event in said} == {receipt.id for receipt in chain}


def test_a_flowchart_is_written_to_a_file(cli: Cli, chain: list[penstock.Receipt], tmp_path: Path) -> None:
    out = tmp_path / "order.mmd"
    cli("graph", chain[0].id, "--format", "mermaid", "--out", str(out))
    text = out.read_text("utf-8")
    assert text.startswith("flowchart") and text.count("shipped") == 1


def test_an_id_nobody_has_is_nothing(cli: Cli, chain: list[penstock.Receipt]) -> None:
    assert "no event belongs to 'unheard-of'" in cli("graph", "unheard-of", code=3).err
