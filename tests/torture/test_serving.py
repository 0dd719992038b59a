"""A server under load, the short form: what large bodies and answers took goes back to the system."""

from __future__ import annotations

import random
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from server.process import ServerProcess
from torture.serving import MIB, Client, figures, prepare
from waiting import eventually

CLIENTS = 6
ROUNDS = 2
GROWTH = 96 * MIB
"""Of a server at rest, over one that has just begun. It was 176 MiB, freed blocks in a heap per thread."""


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux how much memory a process has")
def test_a_server_at_rest_has_given_back_what_large_events_took(tmp_path: Path) -> None:
    with ServerProcess(f"sqlite:{tmp_path / 'store'}") as server:
        prepare(server.url)
        before = figures(server.pid)

        def act(number: int) -> None:
            client = Client(server.url, random.Random(number))
            with client.journal:
                for _ in range(ROUNDS):
                    client.append_large()
                    client.read_large()
                    client.append_batch()

        with ThreadPoolExecutor(CLIENTS) as pool:
            list(pool.map(act, range(CLIENTS)))
        print(f"{before}; then {figures(server.pid)}")
        eventually(lambda: figures(server.pid).resident < before.resident + GROWTH)
