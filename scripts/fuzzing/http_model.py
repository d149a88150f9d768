"""A small model of HTTP/1.1's framing, RFC 9112, made without looking at the server: which requests a stream has."""

from __future__ import annotations

import enum
import re
from typing import Final, NamedTuple

LINE_END: Final = b"\r\n"

TOKEN: Final = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"

REQUEST_LINE: Final = re.compile(rb"(" + TOKEN + rb") +([\x21-\x7e]+) +(HTTP|RTSP|ICE)/([0-9])\.([0-9])")
"""The parser takes the other two protocols for HTTP, and their requests are read in the same way."""

FIELD: Final = re.compile(rb"(" + TOKEN + rb"):([\t\x20-\x7e\x80-\xff]*)")
CHUNK: Final = re.compile(rb"([0-9A-Fa-f]+)((?:[ \t]*;[\t\x20-\x7e\x80-\xff]*)?)")

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""What a client of HTTP/2 begins with; it may be refused once it is whole."""

EXTENSION: Final = re.compile(rb"(?:;" + TOKEN + rb"(?:=(?:" + TOKEN + rb'|"[A-Za-z0-9;]*"))?)*')

PLAIN_METHODS: Final = frozenset({b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"OPTIONS", b"PATCH"})

PLAIN_TARGET: Final = re.compile(rb"/[A-Za-z0-9/._~?=&-]*")

MOST_BYTES: Final = 2**63 - 1


class Expected(NamedTuple):
    """A request in a stream."""

    method: bytes
    target: bytes
    body: bytes
    """What has come of it."""
    whole: bool
    """Whether all of it has come."""
    plain: bool
    """Whether no server may refuse it for what it is."""
    last: bool
    """Whether the connection ends with it."""
    head_bytes: int
    """Bytes of its address and headers, without spaces around values; four more for each header."""


class End(enum.Enum):
    """How a stream ends."""

    WHOLE = enum.auto()
    """With its last request."""
    PART = enum.auto()
    """Within a request, which may be none."""
    WRONG = enum.auto()
    """With bytes that are no request, or no body."""


class Reading(NamedTuple):
    """What a stream is."""

    requests: list[Expected]
    end: End


class _BodyError(Exception):
    """A body is none, or is not there to its end.

    Args:
        end: Which of both.
        body: What has come of it.
    """

    def __init__(self, end: End, body: bytes = b"") -> None:
        super().__init__()
        self.end = end
        self.body = body


class _HeadError(Exception):
    """These bytes are no request."""


def read(stream: bytes) -> Reading:
    """Return the requests of a stream."""
    found: list[Expected] = []
    at = 0
    try:
        while not (found and found[-1].last):
            while stream[at : at + 1] in {b"\r", b"\n"}:  # empty lines before a request are passed over
                at += 1
            begin = at
            end = stream.find(2 * LINE_END, begin)
            if end < 0:
                return Reading(found, End.PART if stream[begin:] else End.WHOLE)
            if PREFACE.startswith(stream[begin:]):
                return Reading(found, End.PART)
            method, target, fields, version = _head(stream[begin:end])
            hosts = len(fields.get(b"host", []))
            if hosts > 1 or (version == b"1.1" and not hosts):  # RFC 9112, 3.2
                raise _HeadError
            at = end + 4
            options = {each.strip().lower() for each in b",".join(fields.get(b"connection", [])).split(b",")}
            plain = (
                method in PLAIN_METHODS
                and _PLAIN_LINE.match(stream, begin) is not None
                and PLAIN_TARGET.fullmatch(target) is not None
                and not {b"upgrade", b"proxy-connection"} & fields.keys()
                and options <= {b"", b"close", b"keep-alive"}
                and fields.get(b"expect", [b"100-continue"]) == [b"100-continue"]
            )
            last = version == b"1.0" or b"close" in options
            head_bytes = len(target) + sum(
                len(name) + len(value) + 4 for name, values in fields.items() for value in values
            )
            request = Expected(method, target, b"", False, plain, last, head_bytes)
            chunked, length = _framing(fields)
            if chunked and version == b"1.0":
                request = request._replace(plain=False)
            try:
                body, at = _chunks(stream, at) if chunked else _content(stream, at, length)
            except _BodyError as ended:
                found.append(request._replace(body=ended.body))
                return Reading(found, ended.end)
            plain = request.plain and _is_plain(stream[end + 2 : at])
            found.append(request._replace(body=body, whole=True, plain=plain))
    except _HeadError:
        return Reading(found, End.WRONG)
    return Reading(found, End.WHOLE)


_PLAIN_LINE: Final = re.compile(rb"[^ ]+ [^ ]+ HTTP/")

_FRAMING_FIELD: Final = re.compile(rb"(?im)^(?:transfer-encoding|content-length|upgrade|connection|trailer)[ \t]*:")


def _is_plain(body: bytes) -> bool:
    """Return whether extensions of chunks are certainly such, and trailers say nothing of the body."""
    return _FRAMING_FIELD.search(body) is None and all(
        EXTENSION.fullmatch(each) for each in re.findall(rb"(?m)^[0-9A-Fa-f]+([ \t;].*)\r$", body)
    )


def _head(head: bytes) -> tuple[bytes, bytes, dict[bytes, list[bytes]], bytes]:
    """Return method, target, fields and version."""
    first, *lines = head.split(LINE_END)
    line = REQUEST_LINE.fullmatch(first)
    if line is None or (line[4], line[5]) not in {(b"1", b"0"), (b"1", b"1")}:
        raise _HeadError
    return line[1], line[2], _fields(lines), line[4] + b"." + line[5]


def _fields(lines: list[bytes]) -> dict[bytes, list[bytes]]:
    found: dict[bytes, list[bytes]] = {}
    for each in lines:
        field = FIELD.fullmatch(each)
        if field is None:
            raise _HeadError
        found.setdefault(field[1].lower(), []).append(field[2].strip(b" \t"))
    return found


def _framing(fields: dict[bytes, list[bytes]]) -> tuple[bool, int]:
    """Return whether a body is chunked, and otherwise its length; one way to tell it, given once."""
    codings, lengths = fields.get(b"transfer-encoding"), fields.get(b"content-length")
    if codings is not None:
        if lengths is not None or len(codings) > 1 or codings[0].lower() != b"chunked":
            raise _HeadError
        return True, 0
    if lengths is None:
        return False, 0
    if len(lengths) > 1 or not re.fullmatch(rb"[0-9]+", lengths[0]) or int(lengths[0]) > MOST_BYTES:
        raise _HeadError
    return False, int(lengths[0])


def _content(stream: bytes, at: int, length: int) -> tuple[bytes, int]:
    """Return a body of a known length, and where the next request begins."""
    if len(stream) < at + length:
        raise _BodyError(End.PART, stream[at:])
    return stream[at : at + length], at + length


def _chunks(stream: bytes, at: int) -> tuple[bytes, int]:
    """Return a body in chunks, without its trailers, and where the next request begins."""
    body = bytearray()
    while True:
        end = stream.find(LINE_END, at)
        if end < 0:
            raise _BodyError(End.PART, bytes(body))
        chunk = CHUNK.fullmatch(stream[at:end])
        if chunk is None or int(chunk[1], 16) > MOST_BYTES:
            raise _BodyError(End.WRONG, bytes(body))
        at, size = end + 2, int(chunk[1], 16)
        if not size:
            return bytes(body), _trailers(stream, at, bytes(body))
        body += stream[at : at + size]
        at += size
        after = stream[at : at + 2]
        if after != LINE_END:
            if LINE_END.startswith(after):
                raise _BodyError(End.PART, bytes(body))
            raise _BodyError(End.WRONG, bytes(body))
        at += 2


def _trailers(stream: bytes, at: int, body: bytes) -> int:
    """Return where the lines behind a body's last chunk end."""
    while True:
        end = stream.find(LINE_END, at)
        if end < 0:
            raise _BodyError(End.PART, body)
        if end == at:
            return end + 2
        try:
            _fields([stream[at:end]])
        except _HeadError:
            raise _BodyError(End.WRONG, body) from None
        at = end + 2
