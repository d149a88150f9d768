"""Forms with files: a body of `multipart/form-data`, by RFC 7578, as its parts. Pure.

The whole body has come, within its limit. Boundaries are found by `bytes.find`, whose time is linear whatever is
sent, and what is read byte by byte, the parts' headers, is short and bounded in number.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from atomr_mp.serve.problems import Problem

FORM: Final = b"multipart/form-data"

MOST_TYPE_BYTES: Final = 512
"""Bytes of a request's `Content-Type` with the boundary."""

MOST_BOUNDARY_CHARS: Final = 70
"""By RFC 2046, 5.1.1."""

MOST_HEAD_BYTES: Final = 2048
"""Bytes of a part's headers: names of files have 255 at most."""

MOST_PADDING_BYTES: Final = 64
"""Blanks behind a boundary."""

PLAIN: Final = frozenset({"", "binary", "7bit", "8bit"})
"""Values of `Content-Transfer-Encoding` that leave the content as it is."""

_PARAMETER: Final = re.compile(r'[ \t]*;[ \t]*([A-Za-z0-9_*-]+)=(?:"((?:[^"\\]|\\.)*)"|([^\s;"]*))')
_ESCAPED: Final = re.compile(r'\\(["\\])')
_NO_TEXT: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


class FormPart(NamedTuple):
    """A field or a file of a form."""

    name: str
    content: memoryview
    """A view of the form's body."""
    filename: str | None = None
    """The file's name as the client says; None of a field."""
    content_type: str = ""
    """The media type with its parameters; empty if the client does not tell it."""


def parts_of(body: bytes, content_type: bytes, most: int) -> list[FormPart]:
    """Return the parts of a form.

    Args:
        body: The whole body.
        content_type: The request's header, which has the boundary.
        most: Most parts.

    Raises:
        Problem: 400, the body is no form; 413, it has more parts, or a part's headers are too long.
    """
    delimiter = b"\r\n--" + _boundary(content_type)
    first = -2 if body.startswith(delimiter[2:]) else body.find(delimiter)  # what comes before the first is nothing
    if first == -1:
        raise _no_form("the boundary that Content-Type names is not in it")
    at = first + len(delimiter)
    whole = memoryview(body)
    parts: list[FormPart] = []
    while not body.startswith(b"--", at):
        if len(parts) == most:
            raise Problem(413, "too_large", f"the form has more than {most} parts", facts={"limit_parts": most})
        line = body.find(b"\r\n", at, at + MOST_PADDING_BYTES)
        if line < 0 or body[at:line].strip(b" \t"):
            raise _no_form("a boundary is not the end of its line")
        head = body.find(b"\r\n\r\n", line, line + MOST_HEAD_BYTES)
        if head < 0:
            if len(body) - line > MOST_HEAD_BYTES:
                text = f"the headers of a part have more than {MOST_HEAD_BYTES} bytes, or do not end"
                raise Problem(413, "too_large", text, facts={"limit_bytes": MOST_HEAD_BYTES})
            raise _no_form("it ends within the headers of a part")
        end = body.find(delimiter, head + 4)
        if end < 0:
            raise _no_form("it ends without its last boundary")
        parts.append(_part(body[line + 2 : head], whole[head + 4 : end]))
        at = end + len(delimiter)
    return parts


def _part(head: bytes, content: memoryview) -> FormPart:
    """Return a part by its headers.

    Raises:
        Problem: 400.
    """
    headers: dict[str, str] = {}
    try:
        lines = head.decode().split("\r\n")
    except UnicodeDecodeError as error:
        raise _no_form("the headers of a part are no UTF-8") from error
    for line in lines:
        name, colon, value = line.partition(":")
        key = name.lower()
        if not colon or not name or name != name.strip() or key in headers or _NO_TEXT.search(line):
            raise _no_form(f"a part has a wrong or repeated header, {line[:100]!r}")
        headers[key] = value.strip(" \t")
    if headers.get("content-transfer-encoding", "").lower() not in PLAIN:
        raise _no_form("a part has a Content-Transfer-Encoding; send its content as it is")
    kind, parameters = _parameters(headers.get("content-disposition", ""))
    if kind != "form-data" or "name" not in parameters:
        raise _no_form('a part lacks its header `Content-Disposition: form-data; name="…"`')
    return FormPart(parameters["name"], content, parameters.get("filename"), headers.get("content-type", ""))


def _boundary(content_type: bytes) -> bytes:
    """Return the boundary in a `Content-Type`.

    Raises:
        Problem: 400.
    """
    if len(content_type) <= MOST_TYPE_BYTES and content_type.isascii():
        _, parameters = _parameters(content_type.decode())
        boundary = parameters.get("boundary", "")
        if 0 < len(boundary) <= MOST_BOUNDARY_CHARS and boundary.isprintable():
            return boundary.encode()
    raise _no_form("its Content-Type has no usable boundary")


def _parameters(header: str) -> tuple[str, dict[str, str]]:
    """Return the value of a header without its parameters, in small letters, and the parameters by name.

    Raises:
        Problem: 400; the parameters cannot be read, or one is there twice.
    """
    value = header.partition(";")[0]
    at, found = len(value), dict[str, str]()
    while header[at:].strip(" \t;"):
        match = _PARAMETER.match(header, at)
        name = match[1].lower() if match else ""
        if match is None or name in found:
            raise _no_form(f"the parameters of a header cannot be read: {header[:100]!r}")
        found[name] = match[3] if match[2] is None else _ESCAPED.sub(r"\1", match[2])
        at = match.end()
    return value.strip(" \t").lower(), found


def _no_form(why: str) -> Problem:
    return Problem(400, "bad_request", f"the body is no form: {why}")
