"""Kernels of the caller's own: CUDA sources that are compiled, code that is loaded, and launches. Pure.

Compiled code is a *module*. A client holds a ref that names it, a buffer of one byte: the module is loaded as long as
any ref to it is held, and stale like any ref when its worker has ended. A kernel is one function of a module, with
the sizes of its parameters as the code itself tells them. A launch has the parameters as bytes, with zeros where
addresses go: the worker fills in the addresses of the arrays that the launch has borrowed.

A kernel can read and write any memory of its worker, and no check can promise otherwise. So the setting `kernels` says
which clients may use this library.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec
from msgspec import Meta

from atomr_mp import errors
from atomr_mp.protocol import dtypes
from atomr_mp.protocol.declaration.arguments import Sizes, reads, updates, writes
from atomr_mp.protocol.layout import Layout
from atomr_mp.protocol.libraries import tensor_maps
from atomr_mp.protocol.libraries.base import LibraryRequest
from atomr_mp.protocol.libraries.tensor_maps import TensorMapOf
from atomr_mp.protocol.refs import Operand
from atomr_mp.protocol.words import counted

LIBRARY: Final = "kernels"

Kind = Literal["cubin", "ptx", "ltoir", "fatbin"]
"""Forms of code: machine code of one architecture, assembly, code that a link compiles, and several of these."""

MAX_SOURCE_CHARS: Final = 4 * 2**20
MAX_CODE_BYTES: Final = 64 * 2**20
KEPT_CODE_BYTES: Final = 4 * 2**20
"""Longest code that a client gets and keeps, to load it into the next worker."""
MAX_NAMES: Final = 1024
MAX_NAME_CHARS: Final = 4096
MAX_OPTIONS: Final = 256
MAX_HEADERS: Final = 256
MAX_PARTS: Final = 64
"""Most codes that are linked to one."""
MAX_PARAMETERS: Final = 1024
MAX_BLOCK_BYTES: Final = 32764
"""Longest parameters of a kernel, in bytes: CUDA has no longer ones."""
MAX_LOWERED_CHARS: Final = 16384
MAX_MAPS: Final = MAX_BLOCK_BYTES // tensor_maps.BYTES
"""Most tensor maps among the arguments of a launch."""

MAX_GLOBAL_BYTES: Final = 2**46

DIGEST_BYTES: Final = hashlib.sha256().digest_size

POINTER_BYTES: Final = 8

MAX_GRID: Final = (2**31 - 1, 65535, 65535)
MAX_BLOCK: Final = (1024, 1024, 64)
MAX_THREADS: Final = 1024
MAX_CLUSTER: Final = 8
"""Most blocks of a cluster that every GPU with clusters has room for."""
MAX_SHARED_BYTES: Final = 2**20
"""More than any GPU has; each has a limit of its own."""

_Text = Annotated[str, Meta(max_length=MAX_NAME_CHARS)]
_Lowered = Annotated[str, Meta(min_length=1, max_length=MAX_LOWERED_CHARS)]
_Extent = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Three = tuple[_Extent, _Extent, _Extent]
"""Lengths by dimension: x, y, z."""

OPAQUE: Final = "bytes"
ADDRESS: Final = "address"
TENSOR_MAP: Final = "tensor map"
"""Kinds of parameters that are no numbers: bytes as the caller gave them, and the address or a map of an array."""

ParameterSizes = Annotated[tuple[tuple[int, int], ...], Meta(max_length=MAX_PARAMETERS)]


class LinkedCode(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One of several codes that are linked."""

    name: Annotated[str, Meta(min_length=1, max_length=256)]
    """Its name in messages, which has the form of a file's."""
    kind: Kind
    code: Annotated[bytes, Meta(min_length=1, max_length=MAX_CODE_BYTES)]


LinkedCodes = Annotated[tuple[LinkedCode, ...], Meta(max_length=MAX_PARTS)]


class Compile(LibraryRequest, frozen=True, dict=True):
    """Compile a source, and load the code. Returns the module and its kernels."""

    name: ClassVar = "compile"
    answers: ClassVar = True
    captured: ClassVar = False
    source: Annotated[str, Meta(max_length=MAX_SOURCE_CHARS)]
    """CUDA C++."""
    names: Annotated[tuple[_Text, ...], Meta(max_length=MAX_NAMES)] = ()
    """Name expressions, such as "scale<float>", which instantiate templates."""
    options: Annotated[tuple[_Text, ...], Meta(max_length=MAX_OPTIONS)] = ()
    """Options of NVRTC."""
    headers: Annotated[tuple[tuple[_Text, str], ...], Meta(max_length=MAX_HEADERS)] = ()
    """Names and texts that the source includes."""
    arch: Annotated[str, Meta(max_length=32)] = ""
    """The architecture, such as "sm_90a"; empty for the device's own."""
    limit_s: Annotated[float, Meta(ge=0, le=86400)] = 0.0
    """How long it may take; 0 for as long as the worker allows."""
    link: LinkedCodes = ()
    """Codes that the compiled one is linked with, and may call."""

    def identity(self) -> tuple[object, ...]:
        """Return a key that equal requests share, without their texts."""
        return (Compile, hashlib.sha256(repr(msgspec.structs.astuple(self)).encode("utf-8", "replace")).digest())


class Load(LibraryRequest, frozen=True, dict=True):
    """Load compiled code; if it is not machine code, or has parts, it is linked. Returns the module and its kernels."""

    name: ClassVar = "load"
    answers: ClassVar = True
    captured: ClassVar = False
    code: Annotated[bytes, Meta(min_length=1, max_length=MAX_CODE_BYTES)]
    kind: Kind
    options: Annotated[tuple[_Text, ...], Meta(max_length=MAX_OPTIONS)] = ()
    """Options of nvJitLink, for code that is linked."""
    arch: Annotated[str, Meta(max_length=32)] = ""
    limit_s: Annotated[float, Meta(ge=0, le=86400)] = 0.0
    shown: Annotated[tuple[tuple[_Text, _Lowered], ...], Meta(max_length=MAX_NAMES)] = ()
    """The caller's names of kernels, with those in the code: machine code that was compiled before knows only these."""
    parts: LinkedCodes = ()
    """More codes, which are linked with it."""
    title: Annotated[str, Meta(max_length=256)] = ""
    """Its name in a link's messages; machine code without is loaded as it is."""

    def identity(self) -> tuple[object, ...]:
        """Return a key that equal requests share, without the code."""
        hashed = msgspec.structs.replace(self, code=b"", parts=())
        codes = [self.code, *(each.code for each in self.parts)]
        names = [(each.name, each.kind) for each in self.parts]
        digests = b"".join(hashlib.sha256(each).digest() for each in codes)
        return (Load, digests, tuple(names), *msgspec.structs.astuple(hashed))


class KernelOf(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A kernel, as `device.kernels.compile` and `device.kernels.load` make it."""

    module: Annotated[Operand, reads("*_", dtype="_")]
    """A ref that names the module. Its content means nothing."""
    name: _Lowered
    """Its name in the code, which the compiler has lowered."""
    code: Annotated[bytes, Meta(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)]
    """SHA-256 of the module's code: the same in every incarnation of a worker."""
    parameters: ParameterSizes
    """Offset and size of each parameter."""
    shown: Annotated[str, Meta(max_length=MAX_LOWERED_CHARS)] = ""
    """Its name in messages, as the caller has given it."""

    @property
    def title(self) -> str:
        """Its name for a reader."""
        return self.shown or self.name

    @property
    def block_bytes(self) -> int:
        """Bytes of all parameters."""
        return max((offset + size for offset, size in self.parameters), default=0)


# --- rules ------------------------------------------------------------------------------------------------------------


def _fills_its_parameters(request: Any, _sizes: Sizes) -> bool:
    """The arguments must be those of the kernel: as many, and each of its size."""
    kernel, values, kinds = request.kernel, request.values, request.kinds
    name = kernel.title
    if len(kinds) != len(kernel.parameters):
        raise errors.InvalidRequest(
            f"{name} has {counted(len(kernel.parameters), 'parameter')}; {counted(len(kinds), 'argument')} given"
        )
    if len(values) != kernel.block_bytes:
        raise errors.InvalidRequest(f"{name} takes {kernel.block_bytes} bytes of parameters, not {len(values)}")
    for at, (parameter, (kind, _)) in enumerate(zip(kernel.parameters, kinds, strict=True)):
        check_argument(name, at, parameter, kind)
    maps = {number for kind, number in kinds if kind == TENSOR_MAP}
    arrays = {number for kind, number in kinds if kind == ADDRESS} | {each.array for each in request.maps}
    for what, used, declared in (("a tensor map", maps, request.maps), ("an array", arrays, request.given)):
        if used != {*range(len(declared))}:
            raise errors.InvalidRequest(
                f"{name}: {what} is declared that is none of the arguments, or an argument that is not declared"
            )
    return True


def check_argument(name: str, at: int, parameter: tuple[int, int], kind: str) -> None:
    """Check that an argument fits its parameter.

    Args:
        name: The kernel's name in messages.
        at: Number of the argument.
        parameter: Offset and size of its parameter.
        kind: Its kind, see `KernelLaunch.kinds`.

    Raises:
        InvalidRequest: It does not.
    """
    offset, size = parameter
    if offset < 0 or size < 1 or offset + size > MAX_BLOCK_BYTES:
        raise errors.InvalidRequest(f"parameter {at} of {name} lies outside of what kernels take")
    if kind == ADDRESS:
        if size != POINTER_BYTES:
            raise errors.InvalidRequest(
                f"argument {at} of {name} is an array, whose address has {POINTER_BYTES} bytes; the parameter has "
                f"{size}"
            )
    elif kind == TENSOR_MAP:
        if size != tensor_maps.BYTES:
            raise errors.InvalidRequest(
                f"argument {at} of {name} is a tensor map, which has {tensor_maps.BYTES} bytes; its parameter has "
                f"{size}: it must be declared as `const __grid_constant__ CUtensorMap`"
            )
    elif kind != OPAQUE and dtypes.ITEM_BYTES.get(kind) != size:
        raise errors.InvalidRequest(f"argument {at} of {name} is {kind}; its parameter has {counted(size, 'byte')}")


def _has_true_maps(request: Any, _sizes: Sizes) -> bool:
    """The tensor maps must be such as CUDA takes."""
    arrays = request.given
    for at, (kind, number) in enumerate(request.kinds):
        if kind == TENSOR_MAP:
            form = request.maps[number]
            try:
                tensor_maps.check_map(arrays[form.array].layout, form)
            except errors.InvalidRequest as error:
                error.message = f"argument {at} of {request.kernel.title}, a tensor map: {error.message}"
                raise
    return True


def _has_room(request: Any, _sizes: Sizes) -> bool:
    """The grid, the blocks and the clusters must be such as CUDA has."""
    for what, given, most in (("grid", request.grid, MAX_GRID), ("block", request.block, MAX_BLOCK)):
        for axis, length, limit in zip("xyz", given, most, strict=True):
            if length > limit:
                raise errors.InvalidRequest(f"{what} is {given}; {axis} may be at most {limit}")
    x, y, z = request.block
    if x * y * z > MAX_THREADS:
        raise errors.InvalidRequest(f"block is {request.block}, {x * y * z} threads; at most {MAX_THREADS} are a block")
    x, y, z = request.cluster
    if x * y * z > MAX_CLUSTER:
        raise errors.InvalidRequest(
            f"cluster is {request.cluster}, {x * y * z} blocks; at most {MAX_CLUSTER} are a cluster"
        )
    for axis, blocks, together in zip("xyz", request.grid, request.cluster, strict=True):
        if blocks % together:
            raise errors.InvalidRequest(
                f"grid is {request.grid} and cluster {request.cluster}: {axis} of the grid must be a multiple of the "
                "cluster's"
            )
    return True


class KernelLaunch(LibraryRequest, frozen=True):
    """Launch a kernel."""

    name: ClassVar = "launch"
    moves: ClassVar = False  # how much of the arrays its kernel reads and writes is not known
    counts: ClassVar = True
    rules: ClassVar = (_fills_its_parameters, _has_true_maps, _has_room)
    kernel: KernelOf
    inputs: Annotated[list[Operand], reads("*_", dtype="_"), Meta(max_length=MAX_PARAMETERS)]
    """Arrays that the kernel reads."""
    out: Annotated[list[Operand], writes("*_", dtype="_"), Meta(max_length=MAX_PARAMETERS)]
    """Arrays that it writes as a whole."""
    inout: Annotated[list[Operand], updates("*_", dtype="_"), Meta(max_length=MAX_PARAMETERS)]
    """Arrays that it reads and writes, or writes in part."""
    values: Annotated[bytes, Meta(max_length=MAX_BLOCK_BYTES)]
    """All parameters as they lie in memory, with zeros for addresses and tensor maps."""
    kinds: Annotated[tuple[tuple[Annotated[str, Meta(max_length=16)], int], ...], Meta(max_length=MAX_PARAMETERS)]
    """Of each argument an element type, "bytes", "address" with the number of its array, or "tensor map" with that of
    its map. Of arrays, inputs are first, then outputs, then changed ones. The number is -1 for others."""
    grid: Three
    """Blocks."""
    block: Three
    """Threads of a block."""
    shared: Annotated[int, Meta(ge=0, le=MAX_SHARED_BYTES)] = 0
    """Bytes of shared memory for each block, beside what the kernel declares itself."""
    cluster: Three = (1, 1, 1)
    """Blocks of a cluster."""
    cooperative: bool = False
    """Whether all blocks run at a time, so that they can wait for each other."""
    maps: Annotated[tuple[TensorMapOf, ...], Meta(max_length=MAX_MAPS)] = ()
    """Tensor maps."""

    @property
    def launched(self) -> str:
        """The kernel's name for a reader."""
        return self.kernel.title

    @property
    def given(self) -> list[Any]:
        """The arrays, in the order of `kinds`."""
        return [*self.inputs, *self.out, *self.inout]

    def addressed(self) -> Iterator[tuple[int, Any]]:
        """Return offset and array of each parameter that is an address."""
        arrays = self.given
        for (offset, _), (kind, array) in zip(self.kernel.parameters, self.kinds, strict=True):
            if kind == ADDRESS:
                yield offset, arrays[array]

    def mapped(self) -> Iterator[tuple[int, int, TensorMapOf, Any]]:
        """Return number and offset of each parameter that is a tensor map, the map, and its array."""
        arrays = self.given
        for at, ((offset, _), (kind, number)) in enumerate(zip(self.kernel.parameters, self.kinds, strict=True)):
            if kind == TENSOR_MAP:
                yield at, offset, self.maps[number], arrays[self.maps[number].array]


class ReadGlobal(LibraryRequest, frozen=True):
    """Copy a module's global to a new buffer. Returns a ref, row-major and without gaps.

    Launches read the buffer that names their module, and this writes no byte of it: so it waits for those before it,
    and those after it wait for it, and when it fails nothing is undefined.
    """

    name: ClassVar = "read"
    answers: ClassVar = True
    captured: ClassVar = False
    module: Annotated[Operand, updates("*_", dtype="_")]
    """A view without elements of the buffer that names the module."""
    variable: _Lowered
    """The global's name in the code."""
    code: Annotated[bytes, Meta(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)]
    dtype: Annotated[str, Meta(max_length=16)]
    shape: Annotated[tuple[int, ...], Meta(max_length=64)]

    @property
    def nbytes(self) -> int:
        """Size of the array, and of the global."""
        return Layout.contiguous(self.dtype, list(self.shape)).nbytes

    @property
    def made_bytes(self) -> int:
        """Size of the array."""
        return self.nbytes

    def check(self) -> None:
        """Check that such an array can exist."""
        Layout.contiguous(self.dtype, list(self.shape))
        super().check()


class WriteGlobal(LibraryRequest, frozen=True):
    """Copy an array to a module's global.

    It writes the buffer that names the module: it waits for the launches before it, and those after it wait for it;
    when it fails, they do not run.
    """

    name: ClassVar = "write"
    answers: ClassVar = True
    captured: ClassVar = False
    module: Annotated[Operand, writes("*_", dtype="_")]
    """A ref that names the module."""
    variable: _Lowered
    """The global's name in the code."""
    code: Annotated[bytes, Meta(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)]
    source: Annotated[Operand, reads("*shape", dtype="s")]
    """The array, row-major and without gaps."""

    @property
    def nbytes(self) -> int:
        """Size of the array, and of the global."""
        return self.source.nbytes

    def check(self) -> None:
        """Check that the array has no gaps."""
        if not self.source.layout.is_contiguous("C"):
            raise errors.InvalidRequest(
                f"what is written to the global {self.variable:.200} has gaps, or is not row-major: copy it first"
            )
        super().check()


Facts = tuple[str, str, tuple[tuple[int, int], ...]]
"""Of a kernel in an answer: the caller's name for it, the one in the code, and offset and size of each parameter."""

GlobalFacts = tuple[str, str, int]
"""Of a global in an answer: the caller's name for it, the one in the code, and its size in bytes."""
