"""Workers of a program's tasks until a signal comes: in this process, or in several."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

import msgspec

from penstock.core.consuming.processes import Supervisor, one_of_several
from penstock.core.consuming.stopping import StopSignals
from penstock.core.model.take import DEFAULT_GROUP
from penstock.core.observe.logs import Log
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.clock import Duration
    from penstock.core.consuming.worker import Worker
    from penstock.core.queue.tasks.tasks import Tasks
    from penstock.core.surface.backend import JournalAddress

log = Log("penstock.tasks")

LOOK_SECONDS = 0.1
"""The seconds between two checks of workers."""


class WorkerSettings(msgspec.Struct, frozen=True):
    """The arguments of `Tasks.workers`, for another process."""

    concurrency: int = 1
    group: str = DEFAULT_GROUP
    consumer: str | None = None
    ahead: int | None = None
    lease: Duration | None = None


def work(workers: Sequence[Worker], stop: StopSignals, is_done: Callable[[], bool] = lambda: False) -> None:
    """Starts workers, and waits until a signal arrives, a worker ends, all work is done, or the process must end."""
    for worker in workers:
        worker.start()
    here = one_of_several()
    while all(worker.alive for worker in workers) and not stop.wait(LOOK_SECONDS):
        if is_done() or (here is not None and here.ending):
            break


def run_here(tasks: Tasks, settings: WorkerSettings) -> None:
    """Runs the workers of tasks in this process until a signal comes."""
    with StopSignals() as stop:
        workers = tasks.workers(**msgspec.structs.asdict(settings))
        work(workers, stop)
        for worker in workers:
            worker.stop()


def run_in_processes(tasks: Tasks, processes: int, settings: WorkerSettings) -> None:
    """Runs the workers of tasks in several processes until a signal comes."""
    module, name = _place(tasks)
    tasks.workers(**msgspec.structs.asdict(settings))  # this checks the settings, and stores the schedules
    address = tasks.journal._backend.address()
    calls = []
    for number in range(processes):
        own = settings
        if settings.consumer is not None and processes > 1:
            own = msgspec.structs.replace(settings, consumer=f"{settings.consumer}-{number + 1}")
        calls.append((module, name, address, own))
    with StopSignals() as stop:
        code = Supervisor(_run_again, calls, log.warning).run(stop.wait)
    if code:
        raise ConfigError(
            f"a process of the tasks ended as soon as it had begun, with exit code {code}: see its output"
        )


def _place(tasks: Tasks) -> tuple[str, str]:
    """Returns the module and the name under which another process finds the tasks."""
    for module in {"__main__", *(tasks[name].function.__module__ for name in tasks.names())}:
        for name, found in vars(sys.modules[module]).items() if module in sys.modules else ():
            if found is tasks:
                return module, name
    raise ConfigError(
        "processes import the tasks: let a module that has one of the task's functions, or the program's own, have a "
        "name for the Tasks"
    )


def _run_again(module: str, name: str, address: JournalAddress, settings: WorkerSettings) -> None:
    """Runs workers of the tasks that a module has under a name, in one of several processes."""
    import penstock

    tasks: Tasks = getattr(import_module(module), name)
    if tasks.bound is not None:
        with tasks.bound:
            run_here(tasks, settings)
        return
    url, token, durability = address
    with penstock.open(url, token=token, durability=durability, create=False) as journal:
        tasks.bind(journal)
        run_here(tasks, settings)
