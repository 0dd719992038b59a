"""Backups and exports are on disk when they are said to be, and as private as their store."""

from __future__ import annotations

import os
import random
import shutil
import stat
import sys
from pathlib import Path

import pytest

import penstock
from torture.disk import Disk
from torture.recorder import MARK, NO_COMPILER, compiler, record

PROGRAM = """
import sys
from pathlib import Path
import penstock
from torture.recorder import mark
root = Path(sys.argv[1])
(root / "0").mkdir()
with penstock.open("memory:") as journal:
    for number in range(300):
        journal.topic("t").append("k", ["x" * 50, number])
    journal.topic("u").append("k", 1)
    mark(opened=True, journal=journal.id)
    journal.export(root / "0" / "lines", topics=["t"])
    mark(lines=300)
    journal.topic("t").append_many([penstock.Draft("k", number) for number in range(100)])
    journal.export(root / "0" / "lines", topics=["t"])
    mark(lines=400)
    journal.export(root / "0" / "parts", topics=["t", "u"], format="parquet")
    mark(parts=400)
"""


@pytest.mark.skipif(compiler() is None, reason=NO_COMPILER)
def test_an_export_that_is_done_survives_a_power_cut_and_one_that_is_not_goes_on(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    root = tmp_path / "disk"
    run = record(program, root)
    assert run.returncode == 0, run.output
    rng = random.Random(5)
    disk, done = Disk(root), 0
    source = next(note["journal"] for note in run.marks(len(run.calls)))
    begin = next(at for at, call in enumerate(run.calls) if call.op == MARK)
    for moment in [*sorted(rng.randrange(begin, len(run.calls)) for _ in range(10)), len(run.calls)]:
        disk.follow(run.calls[done:moment])
        done = moment
        image = tmp_path / "image"
        shutil.rmtree(image, ignore_errors=True)
        disk.root.stored.setdefault("0", disk.root.names["0"])
        disk.image("0", image, random.Random(rng.randrange(1 << 30)))
        marks = list(run.marks(moment))
        for name, topics in (("lines", ["t"]), ("parts", ["t", "u"])):
            wanted = max((note[name] for note in marks if name in note), default=0)
            if wanted:
                with penstock.open("memory:") as journal:
                    journal.import_(image / name)
                    assert journal.topic("t").latest >= wanted, f"{name} before call {moment}"
            with penstock.open("memory:") as journal:  # and whatever there is, an export goes on from it
                journal.topic("t").append_many([penstock.Draft("k", number) for number in range(500)])
                journal.topic("u").append("k", 1)
                journal._core.id = source  # that one was in memory
                journal.export(image / name, topics=topics, format="jsonl" if name == "lines" else "parquet")
                with penstock.open("memory:") as copy:
                    copy.import_(image / name)
                    assert [event.seq for event in copy.topic("t").read()] == list(range(1, 501))


@pytest.mark.skipif(sys.platform == "win32", reason="permissions are POSIX's")
@pytest.mark.parametrize("scheme", ["sqlite", "rocksdb", "file"])
def test_what_is_made_from_a_private_store_is_private(tmp_path: Path, scheme: str) -> None:
    store = tmp_path / "store"
    old = os.umask(0o022)
    try:
        with penstock.open(f"{scheme}:{store}") as journal:
            journal.topic("t").append("secret")
            store.chmod(0o700 if store.is_dir() else 0o600)
            journal.backup(tmp_path / "backup")
            journal.export(tmp_path / "export")
            journal.export(tmp_path / "parts", format="parquet")
            journal.export(tmp_path / "one.jsonl", topics=["t"])
            journal.export(tmp_path / "one.parquet", topics=["t"])
    finally:
        os.umask(old)
    for made in ("backup", "export", "parts", "one.jsonl", "one.parquet"):
        for path in [tmp_path / made, *(tmp_path / made).rglob("*")]:
            mode = stat.S_IMODE(path.stat().st_mode)
            assert mode == (0o700 if path.is_dir() else 0o600), f"{path} {mode:o}"
    with penstock.open(f"{scheme}:{tmp_path / 'backup'}") as copy:
        assert copy.topic("t").latest == 1
