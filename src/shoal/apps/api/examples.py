"""Examples in the API's description.

In flows the OpenAPI document; out flows the same, with an example in every schema of an answer or a request.
Invariant: an example fits its schema, for it is made from it and from the table of telling values below.
"""

from __future__ import annotations

from typing import Any

_RUN = "8d2f4c1b9a7e4f60b1c2d3e4f5a60718"
_NODE = "f3a91c0d5b7e46289abcdeff01234567"
_TELLING: dict[str, Any] = {
    "run": _RUN,
    "node": _NODE,
    "coordinator": "0a1b2c3d4e5f60718293a4b5c6d7e8f9",
    "name": "stdlib-gpt",
    "state": "running",
    "waiting_for": "2 of 4 updates",
    "why": "in the plan of round 7",
    "doing": "training",
    "device": "cpu",
    "epsilon": 3.2,
    "reputation": 812,
    "audits_passed": 5,
    "convictions": 0,
    "key": "first",
    "round": 7,
    "rounds": 60,
    "reason": "4 of 4 updates",
    "text": "Round 7 is sealed with 4 updates.",
    "kind": "round_sealed",
    "level": "info",
    "scope": "view",
    "version": "0.1.0",
    "ticket": "shoal1...",
    "command": "shoal join shoal1...",
    "path": "budget.rounds",
    "message": "found 0; allowed: greater than or equal to 1",
    "code": "SH-RECIPE-02",
    "train_loss": 1.482,
    "validation_loss": 1.537,
    "loss": 1.46,
    "tokens_per_s": 5210.0,
    "changes": {"budget.rounds": 80},
    "parameters": {"budget.rounds": 80},
}


def with_examples(document: dict[str, Any]) -> dict[str, Any]:
    """Add an example to every schema. Does nothing the second time."""
    schemas = document["components"]["schemas"]
    for schema in schemas.values():
        if "properties" in schema and "example" not in schema:
            schema["example"] = _example(schema, schemas, 0)
    return document


def _example(schema: dict[str, Any], schemas: dict[str, Any], depth: int) -> Any:
    if "$ref" in schema:
        return _example(schemas[schema["$ref"].rpartition("/")[2]], schemas, depth + 1)
    if options := schema.get("anyOf"):
        return _example(options[0], schemas, depth)
    if "enum" in schema:
        return schema["enum"][0]
    if "const" in schema:
        return schema["const"]
    if "properties" in schema:
        return {name: _field(name, part, schemas, depth) for name, part in schema["properties"].items()}
    return _plain(schema, schemas, depth)


def _field(name: str, schema: dict[str, Any], schemas: dict[str, Any], depth: int) -> Any:
    made = _example(schema, schemas, depth)
    told = _TELLING.get(name, made)
    fits = type(told) is type(made) and "enum" not in schema and "$ref" not in schema
    return told if fits else made


def _plain(schema: dict[str, Any], schemas: dict[str, Any], depth: int) -> Any:
    match schema.get("type"):
        case "array":
            return [_example(schema["items"], schemas, depth + 1)] if depth < 3 else []
        case "integer":
            return max(1, schema.get("minimum", schema.get("exclusiveMinimum", 0) + 1))
        case "number":
            return float(max(1.5, schema.get("minimum", 0)))
        case "boolean":
            return True
        case "string":
            return "text"
        case "null":
            return None
        case _:
            return {}
