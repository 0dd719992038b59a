"""An app for Django that has the outbox's table as a migration, and the command penstock_relay.

INSTALLED_APPS = [..., "penstock.integrations.outbox.django"]
"""
