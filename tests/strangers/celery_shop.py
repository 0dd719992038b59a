"""A Celery app for tests: BROKER in the environment is its journal."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from celery import Celery

import penstock.integrations.celery  # noqa: F401

app = Celery("celery_shop", broker=os.environ.get("BROKER"), backend=os.environ.get("BROKER"))
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    broker_transport_options={"visibility_timeout": 1.0},
)


@app.task
def add(left: int, right: int) -> int:
    return left + right


@app.task
def total(numbers: list[int]) -> int:
    return sum(numbers)


@app.task(bind=True, max_retries=5)
def retry_until(self: Any, retries: int) -> int:
    if self.request.retries < retries:
        raise self.retry(countdown=0.05)
    return self.request.retries


@app.task
def hang(folder: str) -> int:
    """Writes that it was begun, and returns when it may."""
    begun = len(list(Path(folder).glob("begun-*")))
    Path(folder, f"begun-{begun}").touch()
    while not Path(folder, "go").exists():
        time.sleep(0.01)
    return begun


@app.task
def note(value: int, folder: str, seconds: float = 0.0) -> int:
    """Writes down that it ran, after a while."""
    time.sleep(seconds)
    Path(folder, f"{value}-{os.getpid()}-{time.monotonic_ns()}").touch()
    return value
