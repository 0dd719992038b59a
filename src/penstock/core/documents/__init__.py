"""Values as text and JSON, as the command line, the HTTP API and exports write events.

events       events, drafts and receipts as JSON documents
cloudevents  events as CloudEvents 1.0, and back
decoding     bodies decoded into structs, with errors that name the field and the nearest known one
payloads     fields of JSON payloads as Arrow columns
ddl          the text of a schema, checked
"""
