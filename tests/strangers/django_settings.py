"""The settings of a Django project for tests; the environment says where its rows and its tasks lie."""

import os
from tempfile import TemporaryDirectory

_home = TemporaryDirectory()  # of this process: no test looks into another process's tables

SECRET_KEY = "for tests"
USE_TZ = True
INSTALLED_APPS = ["penstock.integrations.django", "penstock.integrations.outbox.django"]
DATABASES = {
    "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ.get("DATABASE", f"{_home.name}/django.db")}
}
TASKS = {
    "default": {
        "BACKEND": "penstock.integrations.django.backend.TasksBackend",
        "QUEUES": ["default", "mail"],
        "OPTIONS": {
            "url": os.environ.get("JOURNAL", "memory:"),
            "enqueue": os.environ.get("ENQUEUE", "on_commit"),
            "lease": 1.0,
        },
    }
}
