"""Every operation that crosses the wire, declared once.

An `Operation` has a name, a method and a path, query parameters, request and answer as msgspec structs, the errors it
may answer with, the role it needs and the status of its success. The server's routes, the OpenAPI document and the
client are made from the table: nothing about the wire is written down a second time.

    operation       what a declaration is
    journal, topics, queues, messages, deliveries, bulk      the declarations, with their structs
    table           all of them
    fields          changes to stored values, as structs
    problems        errors as problem+json, and back
    openapi         the table as an OpenAPI document
"""
