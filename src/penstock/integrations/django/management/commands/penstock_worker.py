"""The command `manage.py penstock_worker`."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from argparse import ArgumentParser, BooleanOptionalAction
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError
from django.utils.autoreload import DJANGO_AUTORELOAD_ENV, run_with_reloader

import penstock
from penstock.errors import PenstockError
from penstock.integrations.django.backend import TasksBackend
from penstock.integrations.django.running import workers
from penstock.integrations.django.tasks_api import task_backends

GLANCE = 0.2
"""The number of seconds between two checks whether a worker gave up, and whether work is left for --batch."""
NEW_QUEUES = 5.0
"""The number of seconds between two searches for new queues, when a backend takes tasks of any queue."""


class Command(BaseCommand):
    """Runs tasks until it is stopped."""

    help = "Runs the tasks that were enqueued with a backend of penstock, until SIGINT or SIGTERM."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Adds the options, which have the names that other workers use."""
        parser.add_argument("--backend", default="default", help="the backend of TASKS (default: %(default)s)")
        parser.add_argument(
            "--queue-name", default="*", help="the queues, with commas between them (default: all of the backend)"
        )
        parser.add_argument("--concurrency", type=int, default=1, help="how many tasks of a queue run at a time")
        parser.add_argument(
            "--worker-id", default=f"{socket.gethostname()}:{os.getpid()}"[:64], help="the name in worker_ids"
        )
        parser.add_argument("--batch", action="store_true", help="end when there is nothing left to run")
        parser.add_argument(
            "--reload",
            action=BooleanOptionalAction,
            default=settings.DEBUG,
            help="begin anew when the code changes (default: the setting DEBUG)",
        )

    def handle(self, **options: Any) -> None:
        """Runs the workers. Prints one sentence if they cannot run."""
        try:
            self._handle(**options)
        except PenstockError as error:
            raise CommandError(str(error)) from error

    def _handle(self, *, reload: bool, batch: bool, **options: Any) -> None:
        self._told_to_stop = threading.Event()
        if reload and not batch:
            if os.environ.get(DJANGO_AUTORELOAD_ENV) == "true":
                self._listen()
            run_with_reloader(self._run, batch=batch, **options)
        else:
            self._listen()
            self._run(batch=batch, **options)

    def _listen(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._stop)

    def _stop(self, number: int, frame: object) -> None:
        self.stderr.write("finishing the tasks that have begun; once more ends at once")
        signal.signal(number, signal.SIG_DFL)
        self._told_to_stop.set()

    def _run(
        self, *, backend: str, queue_name: str, concurrency: int, worker_id: str, batch: bool, **options: Any
    ) -> None:
        chosen = self._backend(backend)
        for name in self._queues(chosen, queue_name):
            chosen.queue(name)  # rows of an outbox wait for their queues
        relay = chosen.relay()
        if relay is None or batch:
            if relay is not None:
                relay.drain()
                relay.stop()
            self._work(chosen, queue_name, concurrency, worker_id, batch)
        else:
            with relay:
                self._work(chosen, queue_name, concurrency, worker_id, batch)

    def _work(self, chosen: TasksBackend, queue_name: str, concurrency: int, worker_id: str, batch: bool) -> None:
        running: dict[str, penstock.Worker] = {}
        began = looked = 0.0
        try:
            while not self._told_to_stop.wait(GLANCE if began else 0):
                if time.monotonic() - looked >= NEW_QUEUES or not began:
                    looked = began = time.monotonic()
                    new = self._queues(chosen, queue_name) - running.keys()
                    for name, worker in zip(sorted(new), workers(chosen, new, worker_id, concurrency), strict=True):
                        running[name] = worker.start()
                if not all(worker.alive for worker in running.values()):
                    break
                if batch and all(self._is_done(chosen, name) for name in running):
                    break
        finally:
            # all at once, so that no worker begins another task meanwhile
            with ThreadPoolExecutor(max(len(running), 1)) as pool:
                list(pool.map(lambda worker: worker.stop(), running.values()))

    def _backend(self, alias: str) -> TasksBackend:
        try:
            chosen = task_backends[alias]
        except ImproperlyConfigured as error:
            raise CommandError(str(error)) from error
        if not isinstance(chosen, TasksBackend):
            raise CommandError(f"TASKS[{alias!r}] is a {type(chosen).__name__}, not a backend of penstock")
        return chosen

    def _queues(self, backend: TasksBackend, wanted: str) -> set[str]:
        """Returns the queues to work on: the named queues, the queues of the backend, or all queues in the journal."""
        if wanted != "*":
            named = {name.strip() for name in wanted.split(",")}
            if unknown := sorted(named - backend.queues) if backend.queues else []:
                raise CommandError(f"no queue {unknown[0]!r} of this backend: there are {sorted(backend.queues)}")
            return named
        return backend.queues or set(backend.queues_in_journal())

    def _is_done(self, backend: TasksBackend, name: str) -> bool:
        counts = backend.queue(name).stats()
        return not counts.ready and not counts.in_flight
