"""NVRTC: CUDA C++ to code, by its C interface. Only the compiler's process loads it.

The interface is the same in CUDA 12 and 13. Its libraries come as wheels of their own, so no bindings are needed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any, Final

from atomr_mp_workers.compiling.exchange import CodeAnswer, RefusedAnswer, bounded
from atomr_mp_workers.compiling.jobs import MAX_CODE_BYTES, CodeKind, CompileJob

_GETTERS: Final = {
    CodeKind.CUBIN: ("nvrtcGetCUBINSize", "nvrtcGetCUBIN"),
    CodeKind.PTX: ("nvrtcGetPTXSize", "nvrtcGetPTX"),
    CodeKind.LTOIR: ("nvrtcGetLTOIRSize", "nvrtcGetLTOIR"),
}


class Nvrtc:
    """The compiler.

    Args:
        path: Its library.
        builtins: The library that it would load itself, later, when no file can be opened any more.

    Raises:
        OSError: A library cannot be loaded.
    """

    def __init__(self, path: str, builtins: str) -> None:
        self._library: Final = ctypes.CDLL(path)
        self._builtins: Final = ctypes.CDLL(builtins)
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p
        self._library.nvrtcGetErrorString.argtypes = [ctypes.c_int]

    def compile(self, job: CompileJob, includes: Iterable[str]) -> CodeAnswer | RefusedAnswer:
        """Compile a source, in this thread; it may end the process, or take for ever.

        Args:
            job: The source.
            includes: Folders whose headers the source may include.
        """
        program = ctypes.c_void_p()
        headers = _texts(job.headers.values())
        names = _texts(job.headers)
        status = self._library.nvrtcCreateProgram(
            ctypes.byref(program), job.source.encode(), job.name.encode(), len(names), headers, names
        )
        for name in job.names:
            status = status or self._library.nvrtcAddNameExpression(program, name.encode())
        options = [
            *(["-dlto"] if job.kind is CodeKind.LTOIR else []),
            f"--gpu-architecture={job.architecture}",
            *(f"--include-path={folder}" for folder in includes),
            *job.options,
        ]
        status = status or self._library.nvrtcCompileProgram(program, len(options), _texts(options))
        log = self._log(program)
        if status:
            return RefusedAnswer(self._name(status), log)
        size, get = _GETTERS[job.kind]
        length = ctypes.c_size_t()
        status = getattr(self._library, size)(program, ctypes.byref(length))
        if status or not 0 < length.value <= MAX_CODE_BYTES:
            return RefusedAnswer(self._name(status) if status else f"a code of {length.value} bytes", log)
        code = ctypes.create_string_buffer(length.value)
        status = getattr(self._library, get)(program, code)
        if status:
            return RefusedAnswer(self._name(status), log)
        return CodeAnswer(code.raw, {name: self._lowered(program, name) for name in job.names}, log)

    def _name(self, status: int) -> str:
        told: bytes = self._library.nvrtcGetErrorString(status)
        return told.decode("ascii", "replace")

    def _lowered(self, program: ctypes.c_void_p, name: str) -> str:
        lowered = ctypes.c_char_p()
        self._library.nvrtcGetLoweredName(program, name.encode(), ctypes.byref(lowered))
        return (lowered.value or b"").decode("ascii", "replace")

    def _log(self, program: ctypes.c_void_p) -> str:
        length = ctypes.c_size_t()
        if self._library.nvrtcGetProgramLogSize(program, ctypes.byref(length)) or not length.value:
            return ""
        log = ctypes.create_string_buffer(length.value)
        self._library.nvrtcGetProgramLog(program, log)
        return bounded(log.value.decode(errors="replace"))


def _texts(texts: Iterable[str]) -> Any:
    """Return texts as an array of C's strings."""
    encoded = [text.encode() for text in texts]
    return (ctypes.c_char_p * len(encoded))(*encoded)
