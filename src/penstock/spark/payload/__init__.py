"""Payloads between Spark's types and JSON: which types have a JSON form, writing columns, parsing columns, misfits."""
