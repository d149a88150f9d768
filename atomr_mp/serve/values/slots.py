"""Parameters as places for what is no JSON: files, parts of forms, and values in an address. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from atomr_mp.serve.values.unions import REF, options_of

UPLOAD_FIELDS: Final = frozenset({"content", "filename", "content_type"})
"""Fields of a class that takes a file with its name and its type, such as `atomr_mp_workers.UploadedFile`."""

MAX_REF_DEPTH: Final = 16
"""Deepest nesting of definitions that is searched."""


class FieldSlot(NamedTuple):
    """The way in which a parameter takes the content of a file, or the text of a field."""

    takes_bytes: bool = False
    """Whether it is annotated as `bytes`."""
    takes_array: bool = False
    """Whether it is an array."""
    is_uint8: bool = False
    """Whether it is an array of bytes, which a file becomes."""
    upload: frozenset[str] = frozenset()
    """The fields of its class, if that is one for a file with its name and type."""
    takes_text: bool = False
    """Whether a text is taken as it is; else it is JSON."""
    many: bool = False
    """Whether it is a list with an item for each file."""

    @property
    def takes_files(self) -> bool:
        """Whether the content of a file is taken as it is."""
        return self.takes_bytes or self.is_uint8 or bool(self.upload)


UNKNOWN: Final = FieldSlot(takes_text=True)
"""The slot of a parameter that nothing describes."""


def slot_of(schema: Mapping[str, Any], definitions: Mapping[str, Any], depth: int = MAX_REF_DEPTH) -> FieldSlot:
    """Return a parameter's slot by its schema.

    Args:
        schema: The parameter's.
        definitions: Those that the schema refers to.
        depth: How many references are followed.
    """
    reference = schema.get("$ref", "")
    if reference.startswith(REF):
        inner = definitions.get(reference.removeprefix(REF), {})
        return slot_of(inner, definitions, depth - 1) if depth else FieldSlot()
    if options := options_of(schema):
        return _joined([slot_of(each, definitions, depth) for each in options])
    match schema:
        case {"contentEncoding": "base64"}:
            found = FieldSlot(takes_bytes=True)
        case {"format": "ndarray"}:
            found = FieldSlot(takes_array=True, is_uint8=schema.get("dtype") == "uint8")
        case {"enum": list(values)}:
            found = FieldSlot(takes_text=all(isinstance(each, str) for each in values))
        case {"type": "string"}:
            found = FieldSlot(takes_text=True)
        case {"type": "array", "items": dict(items)} if "prefixItems" not in schema:
            item = slot_of(items, definitions, depth)
            found = item._replace(many=True, takes_text=False) if item.takes_files and not item.many else FieldSlot()
        case {"type": "object", "properties": dict(fields)} if _is_upload(fields):
            found = FieldSlot(upload=frozenset(fields))
        case _:
            found = FieldSlot() if schema else UNKNOWN
    return found


def _is_upload(fields: Mapping[str, Any]) -> bool:
    return fields.keys() <= UPLOAD_FIELDS and fields.get("content", {}).get("contentEncoding") == "base64"


def _joined(options: list[FieldSlot]) -> FieldSlot:
    """Return the slot of a union: the first option for files, and texts if any takes them."""
    files = [each for each in options if each.takes_files]
    arrays = [each for each in options if each.takes_array]
    found = (files or arrays or options)[0]
    return found._replace(takes_text=any(each.takes_text for each in options))


def raw_parameter(slots: Mapping[str, FieldSlot]) -> str:
    """Return the parameter that a raw body becomes, empty if none does: the only one for a file.

    A method with one parameter for a file and an array of uint8 beside it has the former for it.
    """
    single = [name for name, slot in slots.items() if slot.takes_files and not slot.many]
    narrow = [name for name in single if not slots[name].is_uint8]
    found = narrow or single
    return found[0] if len(found) == 1 else ""
