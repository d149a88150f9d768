"""The jobs of the compiler, and their results. Pure.

Sources come from clients. `check` refuses what the compiler's process is not even started for; the caller reads why.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Final

import msgspec

from atomr_mp import errors
from atomr_mp_workers.compiling import options

MAX_SOURCE_CHARS: Final = 4 * 2**20
MAX_HEADERS: Final = 256
MAX_HEADERS_CHARS: Final = 8 * 2**20
"""All headers of a job together."""
MAX_NAMES: Final = 1024
MAX_NAME_CHARS: Final = 4096
MAX_INPUTS: Final = 64
MAX_CODE_BYTES: Final = 64 * 2**20
"""Bounds a result, and all inputs of a link together."""
MAX_LOWERED_CHARS: Final = 16384
MAX_LOG_CHARS: Final = 16384

ARCHITECTURE: Final = re.compile(r"(?:sm|compute)_[1-9][0-9]{1,2}[af]?")
FILE_NAME: Final = re.compile(r"[A-Za-z0-9_+-][A-Za-z0-9_+./-]{0,255}")
"""A path without a folder above it: `..` is refused besides."""


class CodeKind(StrEnum):
    """Forms of compiled code."""

    CUBIN = "cubin"
    """Machine code for one architecture."""
    PTX = "ptx"
    """Assembly, for its architecture and later ones. The driver compiles it when it is loaded."""
    LTOIR = "ltoir"
    """Intermediate code that a link compiles together with others."""
    FATBIN = "fatbin"
    """Several of these for several architectures; only a link takes it."""


class CompileJob(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="compile"):
    """A source to be compiled."""

    source: str
    """CUDA C++."""
    architecture: str
    """As NVRTC names it: "sm_90", "sm_90a", "compute_90"."""
    kind: CodeKind = CodeKind.CUBIN
    names: tuple[str, ...] = ()
    """Name expressions, such as "scale<float>", whose lowered names the result has; they instantiate templates."""
    options: tuple[str, ...] = ()
    """Options of NVRTC, of those in `options.COMPILING`."""
    headers: dict[str, str] = {}
    """Texts that the source includes, by the name that it includes them by."""
    name: str = "kernel.cu"
    """The source's name in messages."""


class LinkInput(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A part of a link."""

    name: str
    """Its name in messages."""
    kind: CodeKind
    code: bytes


class LinkJob(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="link"):
    """Codes to be linked to one CUBIN."""

    inputs: tuple[LinkInput, ...]
    architecture: str
    """A real one, such as "sm_90"."""
    options: tuple[str, ...] = ()
    """Options of nvJitLink, of those in `options.LINKING`."""


Job = CompileJob | LinkJob

Lowered = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_LOWERED_CHARS, pattern=r"\A[A-Za-z0-9_$.]++\Z")]


class CompiledCode(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The result of a job."""

    kind: CodeKind
    code: Annotated[bytes, msgspec.Meta(min_length=1, max_length=MAX_CODE_BYTES)]
    lowered: Annotated[dict[str, Lowered], msgspec.Meta(max_length=MAX_NAMES)]
    """Names in the code, by name expression."""
    warnings: Annotated[str, msgspec.Meta(max_length=MAX_LOG_CHARS)]
    """Messages of the compiler as `log_lines.messages` returns them."""


def check(job: Job) -> Job:
    """Return a job with its options in one form.

    Raises:
        InvalidRequest: It is wrong, or too large.
        Unsupported: An option is not allowed.
    """
    if not ARCHITECTURE.fullmatch(job.architecture):
        raise _wrong(f"arch {job.architecture!r:.100} is not a name such as 'sm_90' or 'sm_90a'")
    if isinstance(job, LinkJob):
        _check_link(job)
        return msgspec.structs.replace(job, options=options.LINKING.canonical(job.options))
    _check_compile(job)
    return msgspec.structs.replace(job, options=options.COMPILING.canonical(job.options))


def size_of(job: Job) -> int:
    """Return about how many bytes a job takes."""
    if isinstance(job, LinkJob):
        return sum(len(each.code) for each in job.inputs)
    return len(job.source) + sum(map(len, job.headers.values())) + sum(map(len, job.names))


def kind_of(job: Job) -> CodeKind:
    """Return the kind of a job's result."""
    return CodeKind.CUBIN if isinstance(job, LinkJob) else job.kind


def _check_compile(job: CompileJob) -> None:
    if job.kind is CodeKind.FATBIN:
        raise _wrong("the compiler makes CUBIN, PTX or LTO-IR, and no fatbin")
    if job.kind is CodeKind.CUBIN and job.architecture.startswith("compute_"):
        raise _wrong(
            f"code is made for one architecture, and {job.architecture!r} stands for many: name a real one, such as "
            f"{job.architecture.replace('compute', 'sm')!r}"
        )
    _check_text("the source", job.source, MAX_SOURCE_CHARS)
    _check_file_names([job.name, *job.headers])
    if len(job.headers) > MAX_HEADERS:
        raise _wrong(f"{len(job.headers)} headers are more than {MAX_HEADERS}")
    for name, text in job.headers.items():
        _check_text(f"the header {name!r:.200}", text, MAX_HEADERS_CHARS)
    together = sum(map(len, job.headers.values()))
    if together > MAX_HEADERS_CHARS:
        raise _wrong(f"the headers have {together} characters, which are more than {MAX_HEADERS_CHARS}")
    if len(job.names) > MAX_NAMES:
        raise _wrong(f"{len(job.names)} names are more than {MAX_NAMES}")
    for name in job.names:
        # The compiler writes it into a line of its own, so a further line would be another directive.
        if not name.strip() or len(name) > MAX_NAME_CHARS or not name.isprintable():
            raise _wrong(
                f"the name {name!r:.100} is not a name expression of 1 to {MAX_NAME_CHARS} characters on one line"
            )
    if len(set(job.names)) != len(job.names):
        raise _wrong("a name is there twice")


def _check_link(job: LinkJob) -> None:
    if job.architecture.startswith("compute_"):
        raise _wrong(
            f"a link makes a CUBIN, which is code for one architecture: {job.architecture!r} is not a real one, "
            f"{job.architecture.replace('compute', 'sm')!r} is"
        )
    if not 1 <= len(job.inputs) <= MAX_INPUTS:
        raise _wrong(f"a link has 1 to {MAX_INPUTS} inputs, not {len(job.inputs)}")
    _check_file_names(each.name for each in job.inputs)
    if not all(each.code for each in job.inputs):
        raise _wrong("an input is empty")
    for each in job.inputs:
        if each.kind is CodeKind.CUBIN and each.code[_ELF_TYPE] == _EXECUTABLE:
            raise _wrong(
                f"{each.name} is not relocatable, so a link would leave it out: compile it as relocatable (-rdc=true); "
                "alone it is loaded as it is, not in a list"
            )
    if size_of(job) > MAX_CODE_BYTES:
        raise _wrong(f"the inputs have {size_of(job)} bytes, which are more than {MAX_CODE_BYTES}")


_ELF_TYPE: Final = slice(16, 18)
_EXECUTABLE: Final = b"\x02\0"
"""ET_EXEC; relocatable code has ET_REL."""


def _check_text(what: str, text: str, most: int) -> None:
    if len(text) > most:
        raise _wrong(f"{what} has {len(text)} characters, which are more than {most}")
    if "\0" in text:
        raise _wrong(f"{what} has a NUL at character {text.index(chr(0))}, where the compiler would stop reading")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise _wrong(f"{what} is not text: character {error.start} has no form in UTF-8") from None


def _check_file_names(names: Iterable[str]) -> None:
    for name in names:
        if not FILE_NAME.fullmatch(name) or ".." in name.split("/"):
            raise _wrong(
                f"{name!r:.100} is not a name of a file: use letters, digits and _ + - . /, at most 256, without / in "
                "front and without a folder .."
            )


def _wrong(why: str) -> errors.InvalidRequest:
    return errors.InvalidRequest(f"nothing was compiled: {why}")
