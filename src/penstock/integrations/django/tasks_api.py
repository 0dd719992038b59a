"""The API of tasks: the API of Django 6 if it exists, else the API of the package django-tasks."""

from importlib.util import find_spec

from penstock.integrations import needed_for

with needed_for("django"):
    from django.utils.crypto import get_random_string

    if find_spec("django.tasks") is not None:
        from django.tasks import TaskContext, TaskResult, TaskResultStatus, signals, task_backends
        from django.tasks.backends.base import BaseTaskBackend
        from django.tasks.base import Task, TaskError
        from django.tasks.exceptions import InvalidTask, InvalidTaskBackend, TaskResultDoesNotExist
        from django.utils.json import normalize_json
    else:
        from django_tasks import TaskContext, TaskResult, TaskResultStatus, signals, task_backends
        from django_tasks.backends.base import BaseTaskBackend
        from django_tasks.base import Task, TaskError
        from django_tasks.exceptions import InvalidTaskBackendError as InvalidTaskBackend
        from django_tasks.exceptions import InvalidTaskError as InvalidTask
        from django_tasks.exceptions import TaskResultDoesNotExist
        from django_tasks.utils import normalize_json

__all__ = [
    "BaseTaskBackend",
    "InvalidTask",
    "InvalidTaskBackend",
    "Task",
    "TaskContext",
    "TaskError",
    "TaskResult",
    "TaskResultDoesNotExist",
    "TaskResultStatus",
    "get_random_string",
    "normalize_json",
    "signals",
    "task_backends",
]
