"""A journal as the backend of Django's tasks: `django.tasks` of Django 6, or the earlier package django-tasks.

    INSTALLED_APPS = [..., "penstock.integrations.django"]
    TASKS = {
        "default": {
            "BACKEND": "penstock.integrations.django.backend.TasksBackend",
            "OPTIONS": {"url": BASE_DIR / "shop.db"},
        }
    }

    tasks_api   the names of Django's API, from wherever they are installed
    records     a task as it is stored
    backend     enqueueing and results
    running     a delivery of a queue becomes a call of a task
    management  the command penstock_worker

An enqueued task is a message of the queue `django.<queue name>`. Its state is the newest event of its id in the topic
`django-results`. Every change of state expects the previous state (READY, RUNNING by one worker, SUCCESSFUL or FAILED).
So a worker that lost its lease cannot change what another worker has begun since.
"""
