"""The background tasks of the shop."""

import time

try:
    from django.tasks import task
except ImportError:  # before Django 6
    from django_tasks import task

from shop.models import Order


@task()
def send_receipt(email: str, seconds: float = 1.0) -> str:
    """Talks to a mail server for a while."""
    time.sleep(seconds)
    if email.endswith(".invalid"):
        raise ConnectionError(f"no mail server takes mail for {email}")
    return f"order {Order.objects.filter(email=email).latest('pk').pk}: receipt sent to {email}"
