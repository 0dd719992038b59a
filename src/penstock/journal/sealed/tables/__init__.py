"""Sealed history as tables that others can read: typed columns, Delta Lake, Apache Iceberg.

columns    fields of payloads as Parquet columns beside the JSON text
table      what a topic's lake is registered as, and bringing the table up to date with the journal's segments
delta      a Delta table over the sealed files, written without a JVM
listing    what lies in a topic's lakes, and how others read it
iceberg    the same for Iceberg, in a catalog of the user's or one beside the lake
"""
