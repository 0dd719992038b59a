"""The shop's settings. SHOP_HOME is the folder of its two files, the project's own unless it is set."""

import os
from pathlib import Path

HOME = Path(os.environ.get("SHOP_HOME", Path(__file__).resolve().parent.parent))

SECRET_KEY = "an example has no secrets"
DEBUG = True
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
ROOT_URLCONF = "shop.views"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["shop", "penstock.integrations.django", "penstock.integrations.outbox.django"]
MIDDLEWARE = ["django.middleware.common.CommonMiddleware", "django.middleware.csrf.CsrfViewMiddleware"]
TEMPLATES = [{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True}]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": HOME / "django.db"}}
TASKS = {
    "default": {
        "BACKEND": "penstock.integrations.django.backend.TasksBackend",
        "OPTIONS": {"url": HOME / "shop.db", "enqueue": "outbox", "lease": 5},
    }
}
