"""An app for Django with the outbox's table as a migration, and with the command penstock_relay.

INSTALLED_APPS = [..., "penstock.integrations.outbox.django"]
"""
