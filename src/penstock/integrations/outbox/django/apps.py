"""The app of the outbox."""

from penstock.integrations import needed_for

with needed_for("django"):
    from django.apps import AppConfig


class OutboxConfig(AppConfig):
    """The app, with a label that no other app is likely to have."""

    name = "penstock.integrations.outbox.django"
    label = "penstock_outbox"
    verbose_name = "penstock's outbox"
