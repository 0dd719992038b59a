"""Two processes that write one store, and are killed: every acknowledged event once, in order, without a gap."""

from __future__ import annotations

import random
from pathlib import Path

from journal_oracle import check, kill, notes, reopen, start


def test_two_writing_processes_with_kills(tmp_path: Path) -> None:
    url, chance = f"sqlite:{tmp_path / 'store'}", random.Random()
    oracles = [tmp_path / "oracle-0", tmp_path / "oracle-1"]
    writers = [start(url, oracle, f"p{n}.0", "disk") for n, oracle in enumerate(oracles)]
    for round_ in range(1, 4):
        victim = chance.randrange(2)
        kill(writers[victim], chance)
        if round_ % 2 == 0:  # beside the survivor, which goes on writing
            with reopen(url) as journal:
                noted = notes(*oracles)
                latest = journal.topic("t").latest
                assert all(seq <= latest for note in noted for seq in note.get("seqs", ()))
        writers[victim] = start(url, oracles[victim], f"p{victim}.{round_}", "disk")
    for writer in writers:
        kill(writer, chance)
    noted = notes(*oracles)
    with reopen(url) as journal:
        total = check(journal, noted)
        in_order(notes(oracles[0]))
        in_order(notes(oracles[1]))
    acknowledged = [seq for note in noted for seq in note.get("seqs", ())]
    assert len(set(acknowledged)) == len(acknowledged) <= total and len(noted) > 30


def in_order(noted: list[dict[str, object]]) -> None:
    """What one thread wrote one after the other lies one after the other."""
    last: dict[str, int] = {}
    for note in noted:
        if "seqs" in note:
            writer = str(note["label"]).rpartition("-")[0]
            seqs: list[int] = note["seqs"]  # type: ignore[assignment]
            assert seqs[0] > last.get(writer, 0) and seqs == list(range(seqs[0], seqs[0] + len(seqs)))
            last[writer] = seqs[-1]
