"""Payloads between Spark's types and JSON: which types have a JSON form, and columns written as JSON."""
