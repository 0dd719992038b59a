"""Tasks of a Django project for tests."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import django_project  # noqa: F401
from django.db import connection

from penstock.integrations.django import tasks_api

if tasks_api.Task.__module__.startswith("django_tasks"):
    from django_tasks import task
else:
    from django.tasks import task

called: list[Any] = []
"""What tasks were called with, in the order of their calls."""


@task
def add(left: int, right: int) -> int:
    called.append((left, right))
    return left + right


@task
async def add_later(left: int, right: int) -> int:
    return left + right


@task
def fail(times: int) -> str:
    """Raises so many times, then returns."""
    called.append(times)
    if len(called) <= times:
        raise ValueError(f"failure {len(called)}")
    return "at last"


@task
def leave() -> None:
    raise SystemExit("leaving")


@task
def give_an_object() -> object:
    return object()


@task(takes_context=True)
def attempts(context: Any) -> list[Any]:
    return [context.task_result.id, context.attempt]


@task(takes_context=True)
def meanwhile(context: Any) -> str:
    """Does what the test put into `called` when it is called for the first time, and tells how often it was begun."""
    if called:
        called.pop()()
    return f"begun {context.attempt} times"


@task
def ask_the_database() -> int:
    with connection.cursor() as cursor:
        cursor.execute("select 1")
        called.append(connection.connection)
        return cursor.fetchone()[0]


@task(takes_context=True)
def hang(context: Any, folder: str) -> int:
    """Writes that it was begun, and returns when it may."""
    Path(folder, f"begun-{context.attempt}").touch()
    while not Path(folder, f"go-{context.attempt}").exists():
        time.sleep(0.01)
    return context.attempt
