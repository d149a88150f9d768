"""The compiler of this process, which all its libraries and threads share: it is made with the first job."""

from __future__ import annotations

import functools
import logging
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, NamedTuple

from atomr_mp import errors
from atomr_mp_workers.compiling import toolkits
from atomr_mp_workers.compiling.cache import CodeCache, default_folder
from atomr_mp_workers.compiling.compiler import Compilation, Compiler
from atomr_mp_workers.compiling.compiler_process import confines
from atomr_mp_workers.compiling.jobs import Job
from atomr_mp_workers.compiling.limits import CompileLimits
from atomr_mp_workers.libraries.kernels.images import KernelImage, kernels_of


class ReadCode(NamedTuple):
    """Machine code whose kernels are known."""

    code: bytes
    kernels: dict[str, KernelImage]
    shown: dict[str, str]
    """The caller's names of kernels, by those in the code."""
    messages: str
    """What the compiler has said."""
    key: str
    """Its key in the disk cache; empty if it is not kept there."""


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

    def submit(self, job: Job, deadline_s: float) -> Future[ReadCode]:
        """Have a job done and its code read; see `Compiler.submit`."""
        done: Future[ReadCode] = Future()

        def read(future: Future[Compilation]) -> None:
            try:
                code, key, _ = future.result()
                shown = {lowered: name for name, lowered in code.lowered.items()}
                done.set_result(ReadCode(code.code, kernels_of(code.code), shown, code.warnings, key))
            except BaseException as error:  # noqa: BLE001 - whoever asks for the result gets it
                done.set_exception(error)

        self._compiler.submit(job, deadline_s).add_done_callback(read)
        return done

    def read(self, code: bytes) -> Future[ReadCode]:
        """Have machine code read that needs no compiler."""
        return self._readers.submit(lambda: ReadCode(code, kernels_of(code), {}, "", ""))


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
    except errors.ConfigurationError as error:
        _LOG.warning("%s; compiled code is not kept", error.message)
        return None


_LOG: Final = logging.getLogger("atomr_mp.worker")
