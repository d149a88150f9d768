"""The JSON Schema of what pydantic validates, or makes of a result, by the rules that values cross by. Pure.

pydantic's own schemas are those of its own JSON. Values cross in another way, so three things differ: bytes are base64
whatever a model's configuration says; a parameter's document has every name that a field may be given by; and a result
has the names that `foreign.dump` writes.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from typing import Any, Final

REF_OF_MODEL: Final = "#/$defs/{model}"
"""pydantic's template of references to definitions."""

BYTES: Final[dict[str, Any]] = {"type": "string", "contentEncoding": "base64"}
"""The schema of bytes, the same as msgspec's."""


def schema_by_pydantic(
    adapter: Any, array_schema: Callable[[Any], dict[str, Any] | None], *, of_result: bool
) -> dict[str, Any]:
    """Return a schema, with its definitions as `$defs`.

    Args:
        adapter: pydantic's `TypeAdapter`.
        array_schema: Returns the schema of a class that is an array's; None for any other.
        of_result: Whether the value is a method's result.
    """
    import pydantic
    from pydantic.json_schema import GenerateJsonSchema

    class Generate(GenerateJsonSchema):
        """Knows arrays, and leaves out what has no schema."""

        def is_instance_schema(self, schema: Any) -> dict[str, Any]:
            return array_schema(schema["cls"]) or {}

        def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> dict[str, Any]:  # noqa: ARG002
            return {}

        def bytes_schema(self, schema: Any) -> dict[str, Any]:  # noqa: ARG002 - limits of bytes are none of the text's
            return dict(BYTES)

        def function_after_schema(self, schema: Any) -> dict[str, Any]:
            found: dict[str, Any] = super().function_after_schema(schema)
            encoded = isinstance(getattr(schema["function"]["function"], "__self__", None), pydantic.EncodedBytes)
            if encoded and self.by_alias:  # what crosses is the text: pydantic itself decodes it, and encodes it
                found.pop("contentEncoding", None)
            return found

        def encode_default(self, dft: Any) -> Any:
            if isinstance(dft, bytes):
                return base64.b64encode(dft).decode()
            return super().encode_default(dft)

        def model_schema(self, schema: Any) -> dict[str, Any]:
            before, self.by_alias = self.by_alias, True
            try:
                found: dict[str, Any] = super().model_schema(schema)
            finally:
                self.by_alias = before
            return found if of_result else with_all_names(found, schema["cls"])

    # Models are dumped by aliases; msgspec writes the dataclasses around them by the fields' own names.
    found: dict[str, Any] = adapter.json_schema(
        ref_template=REF_OF_MODEL,
        schema_generator=Generate,
        mode="serialization" if of_result else "validation",
        by_alias=not of_result,
    )
    return found


def with_all_names(schema: dict[str, Any], model: Any) -> dict[str, Any]:
    """Return a model's schema with every name by which a field may be given; pydantic shows the first alone."""
    properties: dict[str, Any] = schema.get("properties", {})
    required: list[str] = schema.get("required", [])
    closed = model.model_config.get("extra") == "forbid"
    either: list[dict[str, Any]] = []
    for field, info in getattr(model, "model_fields", {}).items():
        names = list(dict.fromkeys(_names(field, info, model.model_config)))
        shown = next((each for each in names if each in properties), None)
        if shown is None or len(names) == 1:
            continue
        for name in names:
            properties.setdefault(name, properties[shown])
        each_name = [{"required": [name]} for name in names]
        options = {"oneOf" if closed else "anyOf": each_name}  # where no others are allowed, the second name is one
        if shown in required:
            required.remove(shown)
            either.append(options)
        elif closed:
            either.append({"anyOf": [options, {"not": {"anyOf": each_name}}]})
    if not either:
        return schema
    without = {key: each for key, each in schema.items() if key != "required" or each}
    return without | {"allOf": [*schema.get("allOf", ()), *either]}


def _names(field: str, info: Any, config: Any) -> Iterator[str]:
    """Yield the names of a field's value in what is validated, the best first."""
    alias = info.validation_alias
    if alias is None:
        yield field
        return
    if config.get("validate_by_alias", True):
        for choice in getattr(alias, "choices", [alias]):
            path = getattr(choice, "path", [choice])  # a longer one leads into another field
            if len(path) == 1 and isinstance(path[0], str):
                yield path[0]
    if config.get("populate_by_name") or config.get("validate_by_name"):
        yield field
