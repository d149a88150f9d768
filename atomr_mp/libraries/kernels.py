"""Kernels of the caller's own on a device: `device.kernels`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, SupportsIndex

import msgspec

from atomr_mp import errors
from atomr_mp.libraries.base import LibraryReference, check, lengths, real, whole, wholes
from atomr_mp.libraries.kernel_arguments import Packed, pack
from atomr_mp.libraries.kernel_module import (
    CodeFacts,
    KernelModule,
    Lengths,
    LoadedCode,
    ModuleRequests,
    Written,
    explain,
)
from atomr_mp.libraries.linked_codes import Code, Parts, kind_of, linked_codes
from atomr_mp.libraries.tensor_maps import TensorMap
from atomr_mp.protocol import amounts
from atomr_mp.protocol.libraries import kernels, tensor_maps
from atomr_mp.protocol.libraries.kernels import KernelOf
from atomr_mp.protocol.refs import Operand
from atomr_mp.protocol.words import counted, shown

if TYPE_CHECKING:
    from atomr_mp.client.reply import Reply

ANSWER_S: Final = 0.25
"""How long before a call's deadline its compiler is stopped."""

DEVICE_ONLY: Final = "code is compiled and loaded by a device, before the program that launches it"


class DeviceKernels(LibraryReference):
    """CUDA kernels of your own: compiled, loaded and launched.

    Each source is compiled in a process of its own, which can harm nobody. A kernel that is launched runs as a request
    like others: the arrays among its arguments are borrowed, in order with all other uses, and what it writes is
    declared. But it can touch any memory of its worker, so the pool's setting `kernels` says who may launch.
    """

    library: ClassVar[str] = "kernels"

    def compile(
        self,
        source: str,
        *,
        names: Sequence[str] = (),
        options: Sequence[str] = (),
        headers: Mapping[str, str] | None = None,
        arch: str | None = None,
        link: Parts = (),
        deadline_s: float | None = None,
    ) -> Reply:
        """Compile CUDA C++ and load it; the reply's result is a `KernelModule`.

        Args:
            source: The source.
            names: Name expressions of kernels, such as "scale<float>": each instantiates a template. Kernels that are
                declared `extern "C"` need none. Several may name one kernel.
            options: Options of NVRTC, such as "--use_fast_math"; none that names a file.
            headers: Texts that the source includes, by name. Files of the worker's machine cannot be included, but the
                CUDA toolkit's headers.
            arch: The architecture, such as "sm_90a"; None for the device's own, or "sm_80" without a GPU.
            link: Codes whose device functions the source calls, as for `load`: it is linked with these.
            deadline_s: See `Pool.call`. The compiler is stopped a quarter of a second before, or after four fifths of a
                short one: its answer is there in time.

        Raises:
            CompilationFailed: The source is wrong, or the compiler crashed or took more than 20 s of processor time;
                raised by the reply. Its `log` has the compiler's messages, with lines of this source.
            KernelsForbidden: This client may not use kernels of its own; raised by the reply.
            InvalidRequest: A text is too long, or no text.
        """
        if headers is not None and not isinstance(headers, Mapping):
            raise errors.InvalidRequest(
                f"headers is of type {type(headers).__name__}; it must be a mapping of names to texts, such as "
                '{"my.h": "..."}'
            )
        texts = tuple((str(name), text) for name, text in (headers or {}).items())
        request = kernels.Compile(
            source,
            _texts("names", names, "scale<float>"),
            _texts("options", options, "--use_fast_math"),
            texts,
            arch or "",
            _limit_s(deadline_s),
            linked_codes(link) if link else (),
        )
        return self._module(request, deadline_s, {"kernel.cu": source, **dict(texts)})

    def load(
        self,
        code: Code | Parts,
        kind: kernels.Kind | None = None,
        *,
        options: Sequence[str] = (),
        arch: str | None = None,
        deadline_s: float | None = None,
    ) -> Reply:
        """Load code that was compiled elsewhere; the reply's result is a `KernelModule`.

        PTX, LTO-IR and fatbins are made machine code first, and several codes are linked, in a process of its own, as
        `compile` is. No GPU is needed for that.

        Args:
            code: The code; PTX may be text. Or several as a list, or by names, which messages then have: those that
                call each other's functions were compiled as relocatable (-rdc=true).
            kind: Its form; None tells it by its first bytes, as for each of several.
            options: Options of nvJitLink, for code that is linked.
            arch: The architecture; None for the device's own, or "sm_80" without a GPU.
            deadline_s: See `Pool.call`.

        Raises:
            CompilationFailed: It cannot be linked; raised by the reply.
            InvalidRequest: It is no such code, or is for another device; may be raised by the reply.
        """
        given = _texts("options", options, "-lineinfo"), arch or "", _limit_s(deadline_s)
        if isinstance(code, str | bytes | bytearray | memoryview):
            data = code.encode() if isinstance(code, str) else bytes(code)
            return self._module(kernels.Load(data, kind or kind_of(data), *given), deadline_s, {})
        if kind is not None:
            raise errors.InvalidRequest("kind is of one code; that of each of several is known by its first bytes")
        first, *others = linked_codes(code)
        request = kernels.Load(first.code, first.kind, *given, parts=tuple(others), title=first.name)
        return self._module(request, deadline_s, {})

    def tensor_map(
        self,
        array: Operand,
        *,
        box: SupportsIndex | Sequence[SupportsIndex],
        element_strides: SupportsIndex | Sequence[SupportsIndex] | None = None,
        interleave: tensor_maps.Interleave = "none",
        swizzle: tensor_maps.Swizzle = "none",
        l2_promotion: tensor_maps.L2Promotion = "none",
        oob_fill: tensor_maps.OobFill = "none",
        data_type: tensor_maps.DataType | None = None,
    ) -> TensorMap:
        """Return a tensor map of an array, as an argument of launches: their kernels have boxes of it copied (TMA).

            tiles = device.kernels.tensor_map(x, box=(64, 32), swizzle="128B")
            kernel(tiles, y, grid=16, block=128, out=y)

        The kernel declares it as `const __grid_constant__ CUtensorMap`. NVRTC cannot include `cuda.h`, so the source
        has `struct alignas(64) CUtensorMap { unsigned long long opaque[16]; };`. The names and rules are those of
        CUDA's `cuTensorMapEncodeTiled`, but dimensions have the order of the array's shape. The kernel's coordinates
        are in CUDA's order, the last dimension first. A GPU below compute capability 9.0 refuses the launch as
        `Unsupported`.

        Args:
            array: A ref of one to five dimensions, the last without gaps. Its strides are multiples of 16 bytes, and
                so is its place. It is borrowed as if it were the argument: name it, or the map, in `out` or `inout` if
                the kernel writes it.
            box: How many elements of each dimension a copy moves, at most 256. A row has a multiple of 16 bytes.
            element_strides: Of each how many elements of a dimension one is copied, at most 8; None for all.
            interleave: "16B" or "32B" for channels that are interleaved so.
            swizzle: "32B", "64B" or "128B" if boxes lie swizzled in shared memory; a row then has at most that many
                bytes.
            l2_promotion: Bytes that the L2 cache fetches at a time: "64B", "128B" or "256B".
            oob_fill: Content of elements outside of the array: "none" for zeros, or "nan_request_zero_fma".
            data_type: Of float32 also "float32_ftz", "tfloat32" or "tfloat32_ftz"; None for the array's.

        Raises:
            InvalidRequest: There can be no such map; the message names the rule.
        """
        if not self._is_array(array):
            raise errors.InvalidRequest(
                f"a {type(array).__name__} is given for the array of a tensor map: `Device.put` makes a ref of an array"
            )
        operand = array if self._operand is None else self._operand(array)
        steps = (1,) * len(operand.shape) if element_strides is None else lengths("element_strides", element_strides)
        known = tensor_maps.TYPES_OF.get(operand.dtype, tensor_maps.DATA_TYPES)
        form = tensor_maps.TensorMapOf(
            -1, lengths("box", box), steps, data_type or known[0], interleave, swizzle, l2_promotion, oob_fill
        )
        tensor_maps.check_map(operand.layout, form)
        return TensorMap(array, form)

    def launch(
        self,
        kernel: KernelOf,
        *arguments: Any,
        grid: Lengths,
        block: Lengths,
        shared: SupportsIndex = 0,
        cluster: Lengths = 1,
        cooperative: bool = False,
        out: Written = (),
        inout: Written = (),
        deadline_s: float | None = None,
    ) -> Reply:
        """Launch a kernel, or record its launch in a program.

        The code tells the size of each parameter, and no more. A ref is passed as the address of its first element. A
        NumPy number is passed as it is, and must have the parameter's size. A whole number of Python's becomes an
        integer of that size, and a float a float: write `numpy.float32(2)` where a kernel takes a float and you have
        a whole number. Bytes are passed as they are, for structures. Tensor maps are those of `tensor_map`.

        Args:
            kernel: The kernel.
            *arguments: Its arguments.
            grid: Blocks, by dimension.
            block: Threads of a block.
            shared: Bytes of shared memory for each block, beside what the kernel declares.
            cluster: Blocks of a cluster.
            cooperative: Run all blocks at a time, so that they can wait for each other.
            out: Refs among the arguments that the kernel writes as a whole, or tensor maps of such. It must write no
                others. An equal view of the same memory names an argument too.
            inout: Refs among them that it reads and writes, or writes in part; or tensor maps of such.
            deadline_s: See `Pool.call`.

        Raises:
            InvalidRequest: The arguments are not those of the kernel, or a number is too large.
            BorrowConflict: What is written overlaps another argument.
            PoisonRequest: This launch has ended workers, and is refused. By the reply: the last of them just now.
        """
        if not isinstance(kernel, KernelOf):
            raise errors.InvalidRequest(
                f"a {type(kernel).__name__} is given for a kernel: take one from what `kernels.compile` returns"
            )
        packed: Packed = pack(kernel, arguments, _refs(out), _refs(inout), self._is_array, self._key_of)
        code: LoadedCode | None = getattr(kernel, "__dict__", {}).get("code")
        module = kernel.module if code is None else code.ref
        request = kernels.KernelLaunch(
            KernelOf(module, kernel.name, kernel.code, kernel.parameters, kernel.shown),
            packed.inputs,
            packed.out,
            packed.inout,
            packed.values,
            packed.kinds,
            _three("grid", grid),
            _three("block", block),
            whole("shared", shared),
            _three("cluster", cluster),
            _truth("cooperative", cooperative),
            packed.maps,
        )
        try:
            reply = self._request(request, deadline_s)
        except errors.PoisonRequest as error:
            _name_kernel(error, kernel.title)
            raise
        except errors.GpuRefStale as stale:
            generation = getattr(module, "generation", stale.current)
            if code is None or code.written or not self._sends or generation >= stale.current:
                explain(stale, kernel.title, generation, code)
                raise
            code.renew(module)
            again = msgspec.structs.replace(request.kernel, module=code.ref)
            reply = self._request(msgspec.structs.replace(request, kernel=again), deadline_s)
        if self._sends:
            # Not the kernel, nor its code: a reply keeps no module loaded.
            title, generation, kept = kernel.title, getattr(module, "generation", 0), code and code.facts()
            reply.explain = lambda error: _name_kernel(error, title, generation, kept)
        return reply

    def read_global(
        self, module: Operand, code: bytes, name: str, dtype: str, shape: Sequence[int], deadline_s: float | None
    ) -> Reply:
        """Read a module's global, see `KernelModule.read`."""
        self._check_no_program()
        return self._request(kernels.ReadGlobal(module[:0], name, code, dtype, tuple(shape)), deadline_s)  # type: ignore[index]

    def write_global(
        self, module: Operand, code: bytes, names: tuple[str, str], value: Any, nbytes: int, deadline_s: float | None
    ) -> Reply:
        """Write a module's global of so many bytes, see `KernelModule.write`; names are the caller's and the code's."""
        import numpy as np

        self._check_no_program()
        device: Any = self._device
        if self._sends and not self._is_array(value):
            value = np.asarray(value)
        if value.nbytes != nbytes:
            raise errors.InvalidRequest(
                f"the global {names[0]} has {counted(nbytes, 'byte')}; {counted(int(value.nbytes), 'byte')} are "
                f"given, as {value.dtype} of shape {tuple(value.shape)}"
            )
        source = value if self._is_array(value) else device.put(value)
        return self._request(kernels.WriteGlobal(module, names[1], code, source), deadline_s)

    def _key_of(self, array: Any) -> object:
        """Return a key that equal views of one memory share."""
        operand = array if self._operand is None else self._operand(array)
        return operand.memory, operand.layout

    @property
    def _of_module(self) -> ModuleRequests:
        return ModuleRequests(self.launch, self.read_global, self.write_global)

    def _check_no_program(self) -> None:
        if not self._sends and self._operand is None:
            raise errors.InvalidRequest("globals are read and written outside of programs, before or after their runs")

    def _loaded(self, request: kernels.Load) -> Operand:
        """Load code that was loaded before; return the ref that names it. Blocks."""
        check(request)
        device: Any = self._device
        ref: Operand = device.request(self.library, request, None, blocking=True).result()[0]
        return ref

    @property
    def _sends(self) -> bool:
        """Whether requests are sent: an actor does them at once, and a program keeps them."""
        return self._operand is None and hasattr(self._device, "put")

    def _module(
        self, request: kernels.Compile | kernels.Load, deadline_s: float | None, texts: Mapping[str, str]
    ) -> Reply:
        if not self._sends:
            if self._operand is None:
                raise errors.InvalidRequest(DEVICE_ONLY)
            try:
                return KernelModule(self._of_module, None, self._request(request, deadline_s))  # type: ignore[return-value]
            except errors.CompilationFailed as error:
                _show_lines(error, texts)
                raise
        reply = self._request(request, deadline_s)
        requests = self._of_module
        reply.finish = lambda answer: KernelModule(requests, self._loaded, answer)
        reply.explain = lambda error: _show_lines(error, texts)
        return reply


def _texts(what: str, values: Any, example: str) -> tuple[str, ...]:
    """Return several texts.

    Raises:
        InvalidRequest: They are none, or one text, which is no list of its letters.
    """
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise errors.InvalidRequest(
            f"{what} is of type {type(values).__name__}; it must be a list of texts, such as [{example!r}]"
        )
    found = tuple(values)
    for each in found:
        if not isinstance(each, str):
            raise errors.InvalidRequest(f"{what} has a {type(each).__name__}; it must be a list of texts")
    return found


def _limit_s(deadline_s: float | None) -> float:
    """Return how long a compilation may take, 0 for no limit: its error has to come before the deadline's."""
    if deadline_s is None:
        return 0.0
    given = real("deadline_s", deadline_s)
    return max(given - ANSWER_S, given * 0.8)


def _refs(value: Any) -> list[Any]:
    """Return one array or several as a list."""
    if isinstance(value, list | tuple):
        return list(value)
    return [value]


def _truth(name: str, value: Any) -> bool:
    """Return a truth value.

    Raises:
        InvalidRequest: It is not a truth value of Python's or NumPy's. A text such as "no" would count as true.
    """
    if not amounts.is_truth(value) or getattr(value, "size", 1) != 1:
        raise errors.InvalidRequest(f"{name} is {shown(value)}; it must be True or False")
    return bool(value)


def _three(name: str, value: Any) -> tuple[int, int, int]:
    """Return one to three lengths as three.

    Raises:
        InvalidRequest: They are none.
    """
    given = wholes(name, value) if isinstance(value, list | tuple) else (whole(name, value),)
    if not 1 <= len(given) <= 3 or min(given) < 1:
        raise errors.InvalidRequest(f"{name} is {shown(value)}; it must be one to three lengths of at least 1")
    x, y, z = (*given, 1, 1)[:3]
    return x, y, z


def _show_lines(error: errors.AtomrError, texts: Mapping[str, str]) -> None:
    """Add the caller's own lines to the messages about them: the compiler's log leaves without any."""
    if not isinstance(error, errors.CompilationFailed) or not _is_first(error):
        return
    shown = []
    for message in error.log.split("\n"):
        shown.append(message)
        placed = _PLACED.match(message)
        lines = texts.get(placed[1], "").split("\n") if placed else []
        if placed and 1 <= (number := int(placed[2])) <= len(lines) and lines[number - 1].strip():
            shown.append(f"    {lines[number - 1].strip()[:MAX_LINE_CHARS]}")
    error.log = "\n".join(shown)


def _name_kernel(
    error: errors.AtomrError, title: str, generation: int = 0, code: LoadedCode | CodeFacts | None = None
) -> None:
    """Name the kernel in an error of its worker's end, to which it may have led, and its module if that is at fault."""
    explain(error, title, generation, code)
    if isinstance(error, errors.PoisonRequest | errors.ContextPoisoned | errors.WorkerLost) and _is_first(error):
        error.message = f"kernel {title}: {error.message}"


def _is_first(error: errors.AtomrError) -> bool:
    """Return whether an error is explained for the first time."""
    first = not error.__dict__.get("explained", False)
    error.__dict__["explained"] = True
    return first


MAX_LINE_CHARS: Final = 200

_PLACED: Final = re.compile(r"([^()\n]{1,512})\(([0-9]{1,9})\): ")

Reference: Final = DeviceKernels
