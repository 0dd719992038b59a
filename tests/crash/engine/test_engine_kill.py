"""A process that is killed while it opens a store. Kills at any other moment are `torture.kills`."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

import penstock


@pytest.mark.parametrize("scheme", ["sqlite", "file", "slatedb"])
def test_a_writer_killed_while_it_opens_leaves_a_store_that_opens(scheme: str, tmp_path: Path) -> None:
    url, chance = f"{scheme}:{tmp_path / 'store'}", random.Random()
    code = (
        "import sys, penstock\nprint('go', flush=True)\nfor _ in range(1000):\n"
        "    j = penstock.open(sys.argv[1]); j.topic('t').append('k'); j.close()"
    )
    latest = 0
    for _ in range(2):
        with subprocess.Popen([sys.executable, "-c", code, url], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None and process.stdout.readline() == "go\n"
            time.sleep(chance.random() * 0.06)
            process.kill()
        with penstock.open(url) as journal:
            events = [event.seq for event in journal.topic("t").read()]
            assert events == list(range(1, len(events) + 1)) and len(events) >= latest
            latest = journal.topic("t").append("k").seq
            assert latest == len(events) + 1
