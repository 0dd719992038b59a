"""The command `manage.py penstock_relay`."""

from __future__ import annotations

import signal
import time
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand
from django.db import connections

import penstock
from penstock.integrations.outbox import Relay

GLANCE = 0.2
"""The number of seconds between two checks for a signal."""


class RelayCommand(BaseCommand):
    """Moves rows until it is stopped."""

    help = "Moves the rows of the outbox into a journal, each once, until SIGINT or SIGTERM."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Adds the options."""
        parser.add_argument("journal", help="the journal: a path, or an engine's url")
        parser.add_argument("--database", default="default", help="the alias of DATABASES (default: %(default)s)")
        parser.add_argument("--batch", action="store_true", help="end when there is nothing left to move")

    def handle(self, *, journal: str, database: str, batch: bool, **options: Any) -> None:
        """Runs the relay."""
        with penstock.open(journal) as opened:
            # A connection of Django belongs to its thread. Each thread gets its own connection under the alias.
            relay = Relay(opened, lambda: connections[database], name=database)
            if batch:
                relay.drain()
            else:
                self._run(relay)
            relay.stop()
        self.stdout.write(f"{relay.moved} rows moved")

    def _run(self, relay: Relay) -> None:
        told: list[int] = []
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, lambda which, _: told.append(which)) for number in numbers}
        with relay:
            while not told:
                time.sleep(GLANCE)
        for number, handler in before.items():
            signal.signal(number, handler)


Command = RelayCommand  # Django requires this name
