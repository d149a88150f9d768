"""Code that is loaded on a device: its kernels, and its globals."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, SupportsIndex

from atomr_mp import errors
from atomr_mp.libraries.base import lengths
from atomr_mp.libraries.tensor_maps import TensorMap
from atomr_mp.protocol import dtypes
from atomr_mp.protocol.keywords import checks_names
from atomr_mp.protocol.layout import Layout
from atomr_mp.protocol.libraries import kernels
from atomr_mp.protocol.libraries.kernels import KernelOf
from atomr_mp.protocol.refs import Operand
from atomr_mp.protocol.words import counted, did_you_mean

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from atomr_mp.client.reply import Reply

Lengths = SupportsIndex | Sequence[SupportsIndex]
"""Lengths along x, y and z. A length that is left out is 1."""


Written = Operand | TensorMap | Sequence[Operand | TensorMap]
"""Arrays that a launch writes, or tensor maps of such."""


class ModuleRequests(NamedTuple):
    """The requests of a device for a module and its kernels, see `DeviceKernels`."""

    launch: Callable[..., Any]
    read: Callable[..., Reply]
    write: Callable[..., Reply]


class CodeFacts(NamedTuple):
    """What messages say of a module whose code is kept."""

    written: tuple[str, ...]
    """Names of its globals that were written."""


def explain(error: errors.AtomrError, title: str, generation: int, code: LoadedCode | CodeFacts | None) -> None:
    """Say in an error of a request for a module that the module is at fault, if it is.

    Args:
        error: The error.
        title: The kernel's name; empty for a global's request.
        generation: The incarnation of the device in which the module was loaded.
        code: The module's code, None if it is not kept.
    """
    of = f"the module of kernel {title:.200}" if title else "the module"
    names = ", ".join(sorted(code.written))[:500] if code is not None else ""
    if isinstance(error, errors.GpuRefStale) and 0 < generation < (error.current or error.generation + 1):
        why = f", and its globals were written ({names}), which a new worker does not have" if names else ""
        how = "call `renew()` of it" if code is not None else "compile or load it again"
        error.message = (
            f"{of} was loaded in generation {generation} of device {error.device}, which has ended{why}: {how}, and "
            "record programs that launch its kernels anew"
        )
    elif isinstance(error, errors.GpuRefUndefined) and error.failed_method == _WRITES:
        error.message = (
            f"a global of {of}{f' ({names})' if names else ''} is undefined, since request {error.failed_request} "
            f"({_WRITES}), which was to write it, failed with {error.failed_with}: write it again, or call `renew()` "
            "of the module"
        )


_WRITES: Final = "kernels.write"


class LoadedCode:
    """Machine code, and the ref that names it in the present incarnation of its device.

    Args:
        ref: The ref.
        code: The code.
        shown: Pairs of a kernel's name of the caller's and its name in the code.
        load: Loads code that is loaded no more, and returns its ref.
    """

    def __init__(
        self, ref: Operand, code: bytes, shown: tuple[tuple[str, str], ...], load: Callable[[kernels.Load], Operand]
    ) -> None:
        self.ref = ref
        self.written: Final[set[str]] = set()
        """Names of its globals that were written, so that it is not the same once it is loaded again."""
        self._request: Final = kernels.Load(code, "cubin", shown=shown)
        self._load: Final = load
        self._lock: Final = threading.Lock()

    def facts(self) -> CodeFacts:
        """Return its facts for messages."""
        return CodeFacts(tuple(self.written))

    def renew(self, stale: Operand) -> None:
        """Load the code again, unless another thread has done that since a ref to it was found to be stale. Blocks."""
        with self._lock:
            if self.ref is stale:
                self.ref = self._load(self._request)


class DeviceKernel(KernelOf, frozen=True, dict=True):
    """A kernel on a device. Calling it launches it, see `DeviceKernels.launch`."""

    def __repr__(self) -> str:
        sizes = ", ".join(str(size) for _, size in self.parameters)
        return f"<Kernel {self.title} with parameters of {sizes} bytes>" if sizes else f"<Kernel {self.title}>"

    def __call__(
        self,
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
        """Launch it; see `DeviceKernels.launch`."""
        launch: Callable[..., Reply] = self.__dict__["launch"]
        return launch(
            self,
            *arguments,
            grid=grid,
            block=block,
            shared=shared,
            cluster=cluster,
            cooperative=cooperative,
            out=out,
            inout=inout,
            deadline_s=deadline_s,
        )


@checks_names
class KernelModule:
    """Code that is loaded on a device: its kernels by name.

    A kernel has the name expression that it was compiled with, such as "scale<float>", and its name in the code. It is
    loaded as long as this, or one of its kernels, is there. When the device's worker has ended, the next launch loads
    the code into the next worker, and waits for that; code of more than 4 MiB has to be compiled again.

    Each module has globals of its own, also of equal code. They have their first values when it is loaded again:
    what kernels have stored in them is lost with the worker. Once one was written by `write`, a launch raises
    `GpuRefStale` instead, until `renew` is called.

    Args:
        requests: The requests of its device.
        load: Loads machine code and returns the ref that names it; None where no worker ends, as in an actor.
        answer: The worker's answer.
    """

    def __init__(self, requests: ModuleRequests, load: Callable[[kernels.Load], Operand] | None, answer: Any) -> None:
        ref, digest, facts, self.messages, code, variables = answer
        self._requests: Final = requests
        self._ref: Final[Operand] = ref
        pairs = tuple((shown, name) for shown, name, _ in facts if shown != name)
        self._code: Final = (
            None if load is None or not code else LoadedCode(ref, code, pairs[: kernels.MAX_NAMES], load)
        )
        self.digest: Final[bytes] = digest
        """SHA-256 of its machine code."""
        self._kernels: Final[dict[str, DeviceKernel]] = {}
        for shown, name, parameters in facts:
            kernel = DeviceKernel(ref, name, digest, tuple(map(tuple, parameters)), shown)
            kernel.__dict__.update(launch=requests.launch, code=self._code)
            self._kernels[shown] = self._kernels[name] = kernel
        self._names: Final = [shown for shown, _, _ in facts]
        self._lowered: Final[dict[str, str]] = {shown: name for shown, name, _ in variables}
        self.globals: Final[dict[str, int]] = {shown: nbytes for shown, _, nbytes in variables}
        """Sizes in bytes of its globals, which `read` and `write` reach: `__device__` and `__constant__` variables that
        its kernels use. A name is lowered, as "_ZN1n1xE" for n::x, unless the code was compiled with `names=["&n::x"]`.
        """

    def __repr__(self) -> str:
        return f"<KernelModule of {', '.join(self._names) or 'no kernels'}>"

    def __getitem__(self, name: str) -> DeviceKernel:
        found = self._kernels.get(name)
        if found is None:
            hint = did_you_mean(str(name), self._names)
            raise errors.InvalidRequest(
                f"the module has no kernel {name!r}{hint}; its kernels are: {', '.join(self._names) or 'none'}. "
                'Compile with names=[...], or declare it extern "C"'
            )
        return found

    def __contains__(self, name: object) -> bool:
        return name in self._kernels

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def read(
        self,
        name: str,
        dtype: DTypeLike,
        shape: SupportsIndex | Sequence[SupportsIndex] = (),
        *,
        deadline_s: float | None = None,
    ) -> Reply:
        """Read a global; the reply's result is a ref to a copy.

        It waits for all launches of this module before it, and later ones wait for it, whichever client's they are.

        Args:
            name: Its name, as `globals` has it.
            dtype: The element type of the copy.
            shape: Its shape; it must have the global's size.
            deadline_s: See `Pool.call`.

        Raises:
            InvalidRequest: There is no such global, or it has another size.
        """
        lowered = self._known(name)
        given, long = dtypes.name_for(dtype), lengths("shape", shape)
        nbytes = Layout.contiguous(given, list(long)).nbytes
        if nbytes != self.globals[name]:
            raise errors.InvalidRequest(
                f"the global {name} has {counted(self.globals[name], 'byte')}; {given} of shape {long} has {nbytes}"
            )
        now = self._now()
        return self._explained(
            now, lambda: self._requests.read(now, self.digest, lowered, given, long, deadline_s), written=()
        )

    def write(self, name: str, value: Any, *, deadline_s: float | None = None) -> Reply:
        """Write a global, in order with launches as `read` is. If it fails, launches after it do not run.

        Args:
            name: Its name, as `globals` has it.
            value: A ref, an array or a NumPy number, of the global's size; refs are row-major and without gaps.
            deadline_s: See `Pool.call`.

        Raises:
            InvalidRequest: There is no such global, or it has another size.
        """
        lowered = self._known(name)
        now, nbytes = self._now(), self.globals[name]
        return self._explained(
            now,
            lambda: self._requests.write(now, self.digest, (name, lowered), value, nbytes, deadline_s),
            written=(name,),
        )

    def _explained(self, module: Operand, send: Callable[[], Reply], *, written: Sequence[str]) -> Reply:
        """Send a request for a global; return its reply, whose error says if it is the module's."""
        generation, code = getattr(module, "generation", 0), self._code
        try:
            reply = send()
        except errors.GpuRefStale as stale:
            explain(stale, "", generation, code)
            raise
        if code is not None:
            code.written.update(written)
            facts = code.facts()  # not the code: a reply keeps no module loaded
            reply.explain = lambda error: explain(error, "", generation, facts)
        return reply

    def _known(self, name: str) -> str:
        """Return a global's name in the code.

        Raises:
            InvalidRequest: There is none.
        """
        if name not in self._lowered:
            hint = did_you_mean(str(name), self._lowered)
            raise errors.InvalidRequest(
                f"the module has no global {name!r}{hint}; its globals are: {', '.join(self._lowered) or 'none'}. The "
                "compiler leaves out those that no kernel uses"
            )
        return self._lowered[name]

    def _now(self) -> Operand:
        """Return the ref that names the module now."""
        return self._ref if self._code is None else self._code.ref

    def renew(self) -> Self:
        """Load the code again: after the end of its worker, before a program is recorded anew. Blocks.

        Its globals have their first values then, also if the worker lives: programs that were recorded before keep the
        former ones.

        Raises:
            Unsupported: The code is too long to be kept here.
        """
        if self._code is None:
            raise errors.Unsupported("the code is not kept here, since it is long: compile or load it again")
        self._code.renew(self._code.ref)
        self._code.written.clear()
        return self
