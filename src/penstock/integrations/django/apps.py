"""The app with the command penstock_worker."""

from penstock.integrations import needed_for

with needed_for("django"):
    from django.apps import AppConfig


class PenstockConfig(AppConfig):
    """The app, with a label that no other app is likely to have."""

    name = "penstock.integrations.django"
    label = "penstock_django"
    verbose_name = "penstock"
