"""The kernels and globals in machine code, and sizes of parameters and globals, as the code itself tells them. Pure.

A CUBIN is an ELF file. Its symbols say which functions are kernels, and a section of each kernel has records of its
parameters. So the facts are known where no driver is, and before any driver has seen the code. The code comes from a
client: every number in it is checked before it is used.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from atomr_mp import errors
from atomr_mp.protocol.libraries.kernels import MAX_GLOBAL_BYTES, MAX_LOWERED_CHARS, MAX_PARAMETERS

MAGIC: Final = b"\x7fELF\x02\x01"
"""A file for 64 bits, the lowest byte first."""

MACHINE: Final = 190
"""EM_CUDA."""

MAX_KERNELS: Final = 4096
MAX_GLOBALS: Final = 4096
MAX_SECTIONS: Final = 2**16


class KernelImage(NamedTuple):
    """A kernel in machine code."""

    name: str
    parameters: tuple[tuple[int, int], ...]
    """Offset and size of each."""
    threads: int
    """Most threads of a block that it was compiled for; 0 if it does not say."""
    base: int = 0
    """Where offset 0 of the parameters lies in the memory that the kernel reads them from, by which some are aligned; 0
    if it does not say."""


class _Section(NamedTuple):
    name: str
    kind: int
    link: int
    content: memoryview


def kernels_of(code: bytes) -> dict[str, KernelImage]:
    """Return the kernels of a CUBIN by name.

    Raises:
        InvalidRequest: It is no CUBIN, or is damaged.
    """
    try:
        sections = list(_sections(memoryview(code)))
        entries = set(_entries(sections))
        records = {
            each.name.removeprefix(_RECORDS): each.content for each in sections if each.name.startswith(_RECORDS)
        }
        return {name: _kernel(name, records.get(name, memoryview(b""))) for name in sorted(entries)}
    except (struct.error, IndexError, ValueError, UnicodeDecodeError) as error:
        raise errors.InvalidRequest(f"the code is no CUBIN, or is damaged: {error}") from None


def globals_of(code: bytes) -> dict[str, int]:
    """Return the sizes of a CUBIN's globals in bytes, by name: of `__device__` and `__constant__` variables.

    Those that are managed are left out, which the driver keeps elsewhere, and those that the compiler has removed.

    Raises:
        InvalidRequest: It is no CUBIN, or is damaged.
    """
    try:
        return dict(sorted(_variables(list(_sections(memoryview(code))))))
    except (struct.error, IndexError, ValueError, UnicodeDecodeError) as error:
        raise errors.InvalidRequest(f"the code is no CUBIN, or is damaged: {error}") from None


def _variables(sections: list[_Section]) -> Iterator[tuple[str, int]]:
    """Yield name and size of each global."""
    found = 0
    for section in sections:
        if section.kind != _SYMBOLS:
            continue
        names = sections[section.link].content
        for at in range(0, len(section.content) - _SYMBOL.size + 1, _SYMBOL.size):
            name, info, other, where, _, nbytes = _SYMBOL.unpack_from(section.content, at)
            if info & 0xF != _OBJECT or other & _MANAGED or not nbytes or where >= len(sections):
                continue
            if sections[where].name in _HOLD_GLOBALS:
                found += 1
                if found > MAX_GLOBALS:
                    raise ValueError(f"it has more than {MAX_GLOBALS} globals")
                if nbytes > MAX_GLOBAL_BYTES:
                    raise ValueError(f"a global has {nbytes} bytes")
                yield _text(names, name), nbytes


def _sections(code: memoryview) -> Iterator[_Section]:
    if bytes(code[: len(MAGIC)]) != MAGIC:
        raise ValueError("it does not begin as an ELF file of 64 bits does")
    (machine,) = struct.unpack_from("<H", code, 18)
    if machine != MACHINE:
        raise ValueError(f"it is for machine {machine}, not for CUDA's ({MACHINE})")
    (at,) = struct.unpack_from("<Q", code, 40)
    size, count, names_in = struct.unpack_from("<HHH", code, 58)
    if size != _SECTION.size or not 0 < count <= MAX_SECTIONS or at + size * count > len(code):
        raise ValueError("its table of sections lies outside of it")
    heads = [_SECTION.unpack_from(code, at + size * number) for number in range(count)]
    names = _content(code, heads[names_in])
    for head in heads:
        yield _Section(_text(names, head[0]), head[1], head[6], _content(code, head))


def _content(code: memoryview, head: tuple[int, ...]) -> memoryview:
    _, kind, _, _, begin, length, *_ = head
    if kind == _NO_BITS:
        return memoryview(b"")
    if begin + length > len(code):
        raise ValueError("a section lies outside of it")
    return code[begin : begin + length]


def _text(names: memoryview, at: int) -> str:
    piece = bytes(names[at : at + MAX_LOWERED_CHARS + 1])
    end = piece.find(b"\0")
    if end < 0:
        raise ValueError("a name does not end")
    return piece[:end].decode("ascii")


def _entries(sections: list[_Section]) -> Iterator[str]:
    """Yield the names of the functions that can be launched."""
    for section in sections:
        if section.kind != _SYMBOLS:
            continue
        names = sections[section.link].content
        found = 0
        for at in range(0, len(section.content) - _SYMBOL.size + 1, _SYMBOL.size):
            name, info, other, where, _, _ = _SYMBOL.unpack_from(section.content, at)
            if info & 0xF == _FUNCTION and other & _ENTRY and where:
                found += 1
                if found > MAX_KERNELS:
                    raise ValueError(f"it has more than {MAX_KERNELS} kernels")
                yield _text(names, name)


def _kernel(name: str, records: memoryview) -> KernelImage:
    parameters: dict[int, tuple[int, int]] = {}
    threads, told, base, at = 0, 0, 0, 0
    while at + 4 <= len(records):
        form, attribute, value = struct.unpack_from("<BBH", records, at)
        at += 4
        if form != _SIZED:
            told = value if attribute == _PARAMETER_BYTES else told
            continue
        if at + value > len(records):
            raise ValueError(f"a record of {name} does not end")
        if attribute == _PARAMETER and value == _PARAMETER_RECORD.size:
            _, ordinal, offset, word = _PARAMETER_RECORD.unpack_from(records, at)
            parameters[ordinal] = offset, word >> _SIZE_SHIFT
        elif attribute == _PARAMETER_BASE and value == 8:
            _, base = struct.unpack_from("<IH", records, at)
        elif attribute == _MAX_THREADS and value == 12:
            x, y, z = struct.unpack_from("<III", records, at)
            threads = min(x * y * z, 2**31 - 1)
        at += value
    ordered = tuple(parameters[number] for number in sorted(parameters))
    if sorted(parameters) != list(range(len(parameters))) or len(ordered) > MAX_PARAMETERS:
        raise ValueError(f"the parameters of {name} are not numbered from 0 on")
    if told != max((offset + size for offset, size in ordered), default=0):
        raise ValueError(f"the parameters of {name} take {told} bytes, and its records say something else")
    return KernelImage(name, ordered, threads, base)


_SECTION: Final = struct.Struct("<IIQQQQIIQQ")
"""Name, kind, flags, address, offset, length, link, info, alignment, length of an entry."""
_SYMBOL: Final = struct.Struct("<IBBHQQ")
"""Name, kind, other, section, value, length."""
_PARAMETER_RECORD: Final = struct.Struct("<IHHI")
"""Index, ordinal, offset, and a word with the size in its upper bits."""
_SIZE_SHIFT: Final = 18

_SYMBOLS: Final = 2
_NO_BITS: Final = 8
_FUNCTION: Final = 2
_OBJECT: Final = 1
_HOLD_GLOBALS: Final = frozenset({".nv.global", ".nv.global.init", ".nv.constant3"})
_MANAGED: Final = 0x04
"""STO_CUDA_MANAGED."""
_ENTRY: Final = 0x10
"""STO_CUDA_ENTRY."""

_RECORDS: Final = ".nv.info."
_SIZED: Final = 4
"""The form of a record that has its length; others have a value in its place."""
_PARAMETER: Final = 0x17
_PARAMETER_BYTES: Final = 0x19
_PARAMETER_BASE: Final = 0x0A
_MAX_THREADS: Final = 0x05
