"""The compiler of this process, which all its libraries and threads share: it is made with the first job."""

from __future__ import annotations

import functools
import hashlib
import logging
from collections.abc import Callable, Hashable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec

from atomr_mp import errors
from atomr_mp_workers.compiling import toolkits
from atomr_mp_workers.compiling.cache import CodeCache, default_folder
from atomr_mp_workers.compiling.compiler import Compilation, Compiler
from atomr_mp_workers.compiling.compiler_process import confines
from atomr_mp_workers.compiling.jobs import CodeKind, CompileJob, Job, LinkInput, LinkJob, check, size_of
from atomr_mp_workers.compiling.limits import CompileLimits
from atomr_mp_workers.libraries.kernels.images import KernelImage, globals_of, kernels_of

SMALL_BYTES: Final = 2**18
"""Largest job that is checked, and looked up, by the loop: a millisecond."""


_COMPILED: Final = "kernel.cu"
"""The name of a source's code in a link's messages."""

_RELOCATABLE: Final = ("--relocatable-device-code=true",)
"""A source that is linked may call functions of other codes."""


class ReadCode(NamedTuple):
    """Machine code whose kernels are known."""

    code: bytes
    digest: bytes
    """Its SHA-256."""
    kernels: dict[str, KernelImage]
    shown: Mapping[str, tuple[str, ...]]
    """The caller's names of kernels and globals, by those in the code; several may name one."""
    messages: str
    """What the compiler has said."""
    key: str
    """Its key in the disk cache; empty if it is not kept there."""
    variables: Mapping[str, int] = MappingProxyType({})
    """Sizes of its globals."""


Then = Callable[..., Any]
"""What goes on with the future of `ReadCode`, and that of a compilation that has ended."""


class CompileService:
    """Compiles and links, and reads the code that comes out: nothing of that is done on the loop.

    Args:
        compiler: The compiler.
        cache: Its disk cache, None for none.
        limits: What a job may take.
    """

    def __init__(self, compiler: Compiler, cache: CodeCache | None, limits: CompileLimits) -> None:
        self.cache: Final = cache
        self.limits: Final = limits
        self._compiler: Final = compiler
        self._readers: Final = ThreadPoolExecutor(1, "kernels")

    def submit(self, job: Job, deadline_s: float, owner: Hashable) -> Future[ReadCode]:
        """Have a job done and its code read; see `Compiler.submit`. A large job is looked at elsewhere, errors too.

        The future can be cancelled until the job is done.
        """
        done: Future[ReadCode] = Future()
        if size_of(job) <= SMALL_BYTES:
            _follow(done, self._compiler.submit(job, deadline_s, owner), _take)
        else:
            self._readers.submit(self._begin, job, deadline_s, owner, done, _take)
        return done

    def compile_and_link(
        self, job: CompileJob, parts: tuple[LinkInput, ...], deadline_s: float, owner: Hashable
    ) -> Future[ReadCode]:
        """Have a source compiled, linked with other codes, and the code read; see `submit`.

        Raises:
            InvalidRequest: A part is wrong.
        """
        job = msgspec.structs.replace(job, kind=CodeKind.LTOIR, options=(*_RELOCATABLE, *job.options))
        linked = LinkJob((LinkInput(_COMPILED, CodeKind.LTOIR, b"x"), *parts), job.architecture)
        check(linked)
        done: Future[ReadCode] = Future()
        self._readers.submit(self._begin, job, deadline_s, owner, done, partial(self._link, linked, deadline_s, owner))
        return done

    def _link(
        self, job: LinkJob, deadline_s: float, owner: Hashable, done: Future[ReadCode], first: Future[Compilation]
    ) -> None:
        """Have a source's code linked, once it is compiled. A thread of the compiler."""
        if done.cancelled():
            return
        try:
            code = first.result().code
            inputs = (LinkInput(_COMPILED, CodeKind.LTOIR, code.code), *job.inputs[1:])
            second = self._compiler.submit(msgspec.structs.replace(job, inputs=inputs), deadline_s, owner)
        except BaseException as error:  # noqa: BLE001 - whoever asks for the result gets it
            _fail(done, error)
            return
        _follow(done, second, partial(_take, lowered=code.lowered, warnings=code.warnings))

    def read(self, code: bytes, shown: Mapping[str, tuple[str, ...]]) -> Future[ReadCode]:
        """Have machine code read that needs no compiler.

        Args:
            code: The code.
            shown: The caller's names of kernels, by those in the code.
        """
        return self._readers.submit(_read, code, shown, "", "")

    def _begin(self, job: Job, deadline_s: float, owner: Hashable, done: Future[ReadCode], then: Then) -> None:
        if done.cancelled():
            return
        try:
            _follow(done, self._compiler.submit(job, deadline_s, owner), then)
        except errors.AtomrError as error:
            _fail(done, error)


def _follow(done: Future[ReadCode], future: Future[Compilation], then: Then) -> None:
    """Have a function go on once a job has ended, and the job given up if its caller cancels."""
    future.add_done_callback(partial(then, done))
    done.add_done_callback(lambda _: done.cancelled() and future.cancel())


def _fail(done: Future[ReadCode], error: BaseException) -> None:
    if done.set_running_or_notify_cancel():
        done.set_exception(error)


def _take(
    done: Future[ReadCode],
    future: Future[Compilation],
    lowered: Mapping[str, str] = MappingProxyType({}),
    warnings: str = "",
) -> None:
    """Read the code of a job that has ended. A thread of the compiler.

    Args:
        done: Gets the code.
        future: The job's.
        lowered: Names in the code that were known before it was linked.
        warnings: Messages from before.
    """
    if not done.set_running_or_notify_cancel():
        return
    try:
        code, key, _ = future.result()
        shown = by_lowered((dict(lowered) | code.lowered).items())
        done.set_result(_read(code.code, shown, "\n".join(filter(None, (warnings, code.warnings))), key))
    except BaseException as error:  # noqa: BLE001 - whoever asks for the result gets it
        done.set_exception(error)


def by_lowered(names: Iterable[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    """Return the caller's names by those in the code, from pairs of a caller's name and the one in the code."""
    found: dict[str, tuple[str, ...]] = {}
    for given, name in names:
        found[name] = (*found.get(name, ()), given)
    return found


def _read(code: bytes, shown: Mapping[str, tuple[str, ...]], messages: str, key: str) -> ReadCode:
    return ReadCode(code, hashlib.sha256(code).digest(), kernels_of(code), shown, messages, key, globals_of(code))


@functools.cache
def service(major: int) -> CompileService:
    """Return the compiler of this process. Looks for files when it is first called.

    Args:
        major: The latest major version of CUDA whose code the driver takes.
    """
    limits, confined = CompileLimits(), confines()
    # Without walls a source may include any file of this user's, which no key of the cache stands for.
    cache = _cache() if confined else None
    return CompileService(Compiler(toolkits.find(major), cache, limits, confined=confined), cache, limits)


def _cache() -> CodeCache | None:
    try:
        return CodeCache(default_folder())
    except (errors.ConfigurationError, RuntimeError) as error:  # the latter where nobody knows this user's home
        _LOG.warning("%s; compiled code is not kept", error)
        return None


_LOG: Final = logging.getLogger("atomr_mp.worker")
