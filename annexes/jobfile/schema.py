"""The JSON Schema of the job file, by which editors complete and check it."""

from typing import Any

from .model import SAID_ELSEWHERE, JobFile

_TEXTS = (
    "arguments", "environment", "cpu", "memory", "ephemeral_storage", "labels", "annotations",
    "time",
)  # fmt: skip


def job_schema() -> dict[str, Any]:
    """Make the schema, in draft 2020-12."""
    schema = JobFile.model_json_schema()
    parts = schema["$defs"]
    for name in SAID_ELSEWHERE:
        parts["JobSettings"]["properties"].pop(name)
    for part in (schema, *parts.values()):
        for name, field in part.get("properties", {}).items():
            if name in _TEXTS:
                _also_numbers(field)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "ropewalk.yaml",
        **{key: value for key, value in schema.items() if key != "title"},
    }


def _also_numbers(field: dict[str, Any]) -> None:
    """Let an editor accept ``cpu: 2``: what is text is read as it is written."""
    for owner in (field, field.get("items"), field.get("additionalProperties")):
        if isinstance(owner, dict) and owner.get("type") == "string":
            owner["type"] = ["string", "number", "boolean"]
