"""Payloads as typed columns: fields of JSON texts in Arrow, for Spark's source and for sealed history.

ddl          the text of a schema, `customer STRING, total DOUBLE`: its fields, and their types in Arrow
parsing      all payloads of a block at once, and one by one where they do not fit
conversion   the types and conversions of those that are read one by one
"""
