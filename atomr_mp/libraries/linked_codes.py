"""Codes that are linked to one, as the caller gives them: their forms are known by their first bytes. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from atomr_mp import errors
from atomr_mp.protocol.libraries.kernels import MAX_CODE_BYTES, MAX_PARTS, Kind, LinkedCode

Code = bytes | bytearray | memoryview | str
"""Compiled code; PTX may be text."""

Parts = Sequence[Code] | Mapping[str, Code]
"""Several codes, in their order; or by names, which messages then have."""


def linked_codes(given: Parts) -> tuple[LinkedCode, ...]:
    """Return codes with their names and forms.

    Raises:
        InvalidRequest: There are none, or too many, or one is not code.
    """
    if isinstance(given, str | bytes | bytearray | memoryview) or not isinstance(given, Mapping | Sequence):
        raise errors.InvalidRequest(
            f"a {type(given).__name__} is given for the codes to link: give a list of codes, or codes by names"
        )
    if not 1 <= len(given) <= MAX_PARTS:
        raise errors.InvalidRequest(f"{len(given)} codes are given to be linked; 1 to {MAX_PARTS} are")
    named = given.items() if isinstance(given, Mapping) else ((None, each) for each in given)
    parts, total = [], 0
    for number, (name, code) in enumerate(named):
        title = f"code {number}" if name is None else repr(name)
        if not isinstance(code, str | bytes | bytearray | memoryview):
            raise errors.InvalidRequest(f"{title:.100} is a {type(code).__name__}; code is bytes, and PTX may be text")
        data = code.encode() if isinstance(code, str) else bytes(code)
        total += len(data)
        if total > MAX_CODE_BYTES:
            raise errors.InvalidRequest(f"the codes have more than {MAX_CODE_BYTES} bytes together, with {title:.100}")
        try:
            kind = kind_of(data)
        except errors.InvalidRequest as error:
            raise errors.InvalidRequest(
                f"{title:.100} begins with {data[:8]!r}, as no CUBIN, PTX, LTO-IR or fatbin does"
            ) from error
        parts.append(LinkedCode(f"code{number}.{kind}" if name is None else str(name), kind, data))
    return tuple(parts)


def kind_of(code: bytes) -> Kind:
    """Return the form of code by its first bytes.

    Raises:
        InvalidRequest: It has no such form.
    """
    for kind, begins in _BEGINS.items():
        if code.startswith(begins):
            return kind
    # A compiler's PTX ends with a NUL.
    if b".version" in code[:65536] and b"\0" not in code[:1024].rstrip(b"\0"):
        return "ptx"
    raise errors.InvalidRequest(
        "nothing tells the form of the code: name it as kind ('cubin', 'ptx', 'ltoir', 'fatbin')"
    )


_BEGINS: Final[dict[Kind, bytes]] = {"cubin": b"\x7fELF", "fatbin": b"\x50\xed\x55\xba", "ltoir": b"\xedCN\x7f"}
"""The first bytes of binary forms; those of LTO-IR are of NVVM's bitcode."""
