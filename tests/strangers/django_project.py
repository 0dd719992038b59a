"""Sets Django up for tests: import this before what needs settings."""

import os

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "django_settings")
django.setup()
