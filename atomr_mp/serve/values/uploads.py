"""A call's arguments from a raw body, with the others in the address, or from the parts of a form. Pure.

A file becomes `bytes`, an array of uint8, or an object with its name and type, as the parameter's annotation says. A
field's text is the argument itself where the annotation takes a text, and JSON elsewhere.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Sequence
from typing import Any, Final

from atomr_mp.protocol import values
from atomr_mp.serve.http.limits import Limits
from atomr_mp.serve.problems import Problem
from atomr_mp.serve.values import arrays
from atomr_mp.serve.values.bodies import from_json
from atomr_mp.serve.values.multipart import FormPart
from atomr_mp.serve.values.results import OCTETS
from atomr_mp.serve.values.schemas import ArgumentPlan
from atomr_mp.serve.values.slots import UNKNOWN, FieldSlot

RAW_TYPES: Final = frozenset({OCTETS, b"application/pdf"})
RAW_KINDS: Final = frozenset({b"image", b"audio", b"video"})
"""Begins of media types whose bodies are raw.

No web page can have a browser send one of these to another origin without asking this server first.
"""

NPY_TYPE: Final = "application/x-npy"


def is_raw(media_type: bytes) -> bool:
    """Return whether a body of a media type is taken as it is."""
    return media_type in RAW_TYPES or media_type.partition(b"/")[0] in RAW_KINDS


def of_raw(plan: ArgumentPlan, body: bytes, content_type: bytes, query: bytes, limits: Limits) -> dict[str, Any]:
    """Return the arguments of a raw body.

    Args:
        plan: The method's.
        body: The whole body.
        content_type: The body's type.
        query: The address's query, with the other arguments by name.
        limits: Limits of the client's requests.

    Raises:
        Problem: 400 or 413; the query cannot be read.
        InvalidRequest: An argument does not fit.
    """
    try:
        given = urllib.parse.parse_qsl(
            query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=limits.form_parts
        )
    except ValueError as error:
        raise Problem(400, "bad_request", f"the arguments in the address cannot be read: {error}") from error
    parts = [FormPart(name, memoryview(text.encode())) for name, text in given]
    if any(part.name == plan.raw for part in parts):
        raise Problem(400, "bad_request", f"the argument {plan.raw} is both in the address and the body")
    return of_form(plan, [*parts, FormPart(plan.raw, memoryview(body), None, content_type.decode("latin-1"))], limits)


def of_form(plan: ArgumentPlan, parts: Sequence[FormPart], limits: Limits) -> dict[str, Any]:
    """Return the arguments of a form.

    Args:
        plan: The method's.
        parts: The fields and files.
        limits: Limits of the client's requests.

    Raises:
        Problem: 400, a name is there twice, or a field is neither text nor JSON; 413, the fields are too large.
        InvalidRequest: An argument does not fit.
    """
    found: dict[str, Any] = {}
    reader = _Fields(plan, limits)
    for part in parts:
        slot = plan.slots.get(part.name, UNKNOWN)
        if slot.many and not _is_json(part):
            listed = found.setdefault(part.name, [])
            if type(listed) is not list:
                raise _twice(part.name)
            listed.append(_file(part, slot))
        elif part.name in found:
            raise _twice(part.name)
        else:
            found[part.name] = reader.value(part, slot)
    values.check_depth(found)
    return found


class _Fields:
    """Reads the parts of one form, with bounds on all of its texts together.

    Args:
        plan: The method's.
        limits: Limits of the client's requests.
    """

    def __init__(self, plan: ArgumentPlan, limits: Limits) -> None:
        self._plan: Final = plan
        self._limits: Final = limits
        self._left_bytes = limits.json_bytes
        self._left_containers = limits.json_containers

    def value(self, part: FormPart, slot: FieldSlot) -> Any:
        """Return the argument of a part."""
        if slot.takes_array and part.content_type.partition(";")[0].strip().lower() == NPY_TYPE:
            return arrays.from_npy(bytes(part.content))
        if slot.takes_files and not slot.many and _is_file(part, slot):
            return _file(part, slot)
        self._left_bytes -= len(part.content)
        if self._left_bytes < 0:
            most = self._limits.json_bytes
            text = f"the fields that are no files have more than {most} bytes"
            raise Problem(413, "too_large", text, facts={"limit_bytes": most})
        content = bytes(part.content)
        if slot.takes_text and not _is_json(part):
            try:
                return content.decode()
            except UnicodeDecodeError as error:
                raise Problem(400, "bad_request", f"the field {part.name[:100]} is no text in UTF-8") from error
        value = self._json(part.name, content)
        return self._plan.converted(part.name, value)

    def _json(self, name: str, content: bytes) -> Any:
        try:
            value = from_json(content, self._left_containers)
        except Problem as problem:
            raise Problem(
                problem.status, problem.code, f"the field {name[:100]}: {problem.message}", facts=problem.facts
            ) from problem
        self._left_containers = max(0, self._left_containers - content.count(b"[") - content.count(b"{"))
        return value


def _file(part: FormPart, slot: FieldSlot) -> Any:
    """Return the argument of a file."""
    if slot.is_uint8:
        import numpy as np

        return np.frombuffer(part.content, np.uint8)
    content = bytes(part.content)
    if slot.upload:
        whole = {"content": content, "filename": part.filename or "", "content_type": part.content_type}
        return {name: value for name, value in whole.items() if name in slot.upload}
    return content


def _is_file(part: FormPart, slot: FieldSlot) -> bool:
    """Return whether a part is the content itself. An array of uint8 may also be a field, with lists."""
    if slot.is_uint8:
        return part.filename is not None or is_raw(part.content_type.partition(";")[0].strip().lower().encode())
    return not _is_json(part)


def _is_json(part: FormPart) -> bool:
    return part.filename is None and part.content_type.partition(";")[0].strip().lower() == "application/json"


def _twice(name: str) -> Problem:
    return Problem(400, "bad_request", f"the form has the field {name[:100]!r} twice, and it is no list of files")
