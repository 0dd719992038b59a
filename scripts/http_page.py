"""Writes docs/http.md from the OpenAPI document the server serves.

    python scripts/http_page.py

A test compares the page with the document, so that neither can drift.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "http.md"
sys.path.insert(0, str(ROOT / "src"))

INTRODUCTION = """\
# The HTTP API

[`penstock serve`](server.md) answers these requests under `/v1`. `/v1/openapi.json` has the same document for programs.
Bodies and answers are JSON, unless a line names another type. Positions are whole numbers, and `after` is exclusive.
Errors are problem+json, whose `error` is a name of [the error tree](errors.md).

This page is made from the OpenAPI document by `python scripts/http_page.py`.
"""


def page() -> str:
    """The page as it should be."""
    from penstock.core.protocol.openapi import document

    said = json.loads(document())
    lines = [INTRODUCTION]
    groups: dict[str, list[str]] = {"The journal": [], "Topics": [], "Queues": []}
    for path, methods in said["paths"].items():
        title = "Queues" if path.startswith("/v1/queues") else "Topics" if "/topics" in path else "The journal"
        for method, operation in methods.items():
            groups[title] += ["", *_operation(method.upper(), path, operation)]
    for title, found in groups.items():
        lines += [f"## {title}", *found, ""]
    lines += ["## Documents", ""]
    for name, schema in sorted(said["components"]["schemas"].items()):
        lines += _schema(name, schema)
    return "\n".join(lines).rstrip() + "\n"


def _operation(method: str, path: str, operation: dict[str, Any]) -> list[str]:
    lines = [f"### {method} {path}", "", f"{_sentence(operation['summary'])} {operation['description']}"]
    asked = [one for one in operation["parameters"] if one["in"] == "query"]
    if asked:
        lines += ["", "| in the query | |", "|---|---|"]
        lines += [f"| `{one['name']}` | {_cell(one['description'])} |" for one in asked]
    body = operation.get("requestBody")
    if body:
        taken = [_kind(said["schema"]) if said else f"`{media}`" for media, said in body["content"].items()]
        lines += ["", f"Takes {' or '.join(taken)}."]
    content = next(said for status, said in operation["responses"].items() if status.startswith("2"))["content"]
    kinds = [
        f"{_kind(schema['schema'])}" if schema.get("schema") else f"`{media}`" for media, schema in content.items()
    ]
    if kinds != ["`application/json`"]:
        lines += ["", f"Answers {' or '.join(kinds)}."]
    return lines


def _schema(name: str, schema: dict[str, Any]) -> list[str]:
    lines = [f"### {name}", ""]
    if schema.get("description"):
        lines += [" ".join(schema["description"].split()), ""]
    rows = []
    needed = set(schema.get("required", ()))
    for field, said in schema.get("properties", {}).items():
        rows.append(f"| `{field}` | {_kind(said)} | {'yes' if field in needed else ''} |")
    if rows:
        lines += ["| field | | always |", "|---|---|---|", *rows, ""]
    elif "enum" in schema:
        lines += ["One of " + ", ".join(f"`{one}`" for one in schema["enum"]) + ".", ""]
    return lines


def _kind(schema: dict[str, Any]) -> str:
    """A schema in a few words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_kind(one) for one in schema["anyOf"]))
    if "enum" in schema:
        return "one of " + ", ".join(f"`{one}`" for one in schema["enum"])
    kind = schema.get("type")
    if kind == "array":
        return f"a list of {_kind(schema.get('items', {}))}" if schema.get("items") else "a list"
    if kind == "object" and "properties" in schema:
        return " and ".join(f"`{name}`: {_kind(said)}" for name, said in schema["properties"].items())
    if kind == "object":
        inner = schema.get("additionalProperties")
        return f"an object of {_kind(inner)}" if isinstance(inner, dict) and inner else "an object"
    words = {"string": "text", "integer": "a whole number", "number": "a number", "boolean": "true or false"}
    if schema.get("format") == "date-time":
        return "a time"
    return words.get(str(kind), "null" if kind == "null" else "any JSON")


def _sentence(text: str) -> str:
    text = text.strip()
    return text[0].upper() + text[1:] + ("" if text.endswith(".") else ".")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
