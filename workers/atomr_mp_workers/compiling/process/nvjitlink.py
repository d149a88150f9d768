"""nvJitLink: codes of several forms to one CUBIN, by its C interface. Only the compiler's process loads it."""

from __future__ import annotations

import ctypes
from typing import Any, Final

from atomr_mp_workers.compiling.exchange import MAX_RAW_LOG_CHARS, CodeAnswer, RefusedAnswer, bounded
from atomr_mp_workers.compiling.jobs import MAX_CODE_BYTES, CodeKind, LinkJob

_INPUTS: Final = {CodeKind.CUBIN: 1, CodeKind.PTX: 2, CodeKind.LTOIR: 3, CodeKind.FATBIN: 4}
"""Numbers of nvJitLinkInputType."""

_STATUSES: Final = (
    *("SUCCESS", "ERROR_UNRECOGNIZED_OPTION", "ERROR_MISSING_ARCH", "ERROR_INVALID_INPUT", "ERROR_PTX_COMPILE"),
    *("ERROR_NVVM_COMPILE", "ERROR_INTERNAL", "ERROR_THREADPOOL", "ERROR_UNRECOGNIZED_INPUT", "ERROR_FINALIZE"),
    *("ERROR_NULL_INPUT", "ERROR_INCOMPATIBLE_OPTIONS", "ERROR_INCORRECT_INPUT_TYPE", "ERROR_ARCH_MISMATCH"),
    *("ERROR_OUTDATED_LIBRARY", "ERROR_MISSING_FATBIN", "ERROR_UNRECOGNIZED_ARCH", "ERROR_UNSUPPORTED_ARCH"),
    "ERROR_LTO_NOT_ENABLED",
)
"""Names of the first results; it has no function that returns them."""


class NvJitLink:
    """The linker.

    Args:
        path: Its library.
        major: The library's major version, which its functions have in their names.

    Raises:
        OSError: It cannot be loaded.
    """

    def __init__(self, path: str, major: int) -> None:
        self._library: Final = ctypes.CDLL(path)
        self._suffix: Final = f"_{major}_0"

    def link(self, job: LinkJob) -> CodeAnswer | RefusedAnswer:
        """Link codes, in this thread; they are as little to be trusted as sources."""
        options = [f"-arch={job.architecture}", *job.options]
        if any(each.kind is CodeKind.LTOIR for each in job.inputs):
            options.append("-lto")
        handle = ctypes.c_void_p()
        encoded = [option.encode() for option in options]
        array = (ctypes.c_char_p * len(encoded))(*encoded)
        status = self._call("Create", ctypes.byref(handle), ctypes.c_uint32(len(encoded)), array)
        if not handle.value:
            return RefusedAnswer(_name(status), "")
        for each in job.inputs:
            # PTX is text, which ends with a NUL.
            data = each.code + b"\0" if each.kind is CodeKind.PTX else each.code
            size = ctypes.c_size_t(len(data))
            status = status or self._call("AddData", handle, _INPUTS[each.kind], data, size, each.name.encode())
        status = status or self._call("Complete", handle)
        log = "\n".join([self._log(handle, "ErrorLog"), self._log(handle, "InfoLog")]).strip("\n")
        if status:
            return RefusedAnswer(_name(status), log)
        length = ctypes.c_size_t()
        status = self._call("GetLinkedCubinSize", handle, ctypes.byref(length))
        if status or not 0 < length.value <= MAX_CODE_BYTES:
            return RefusedAnswer(_name(status) if status else f"a code of {length.value} bytes", log)
        code = ctypes.create_string_buffer(length.value)
        status = self._call("GetLinkedCubin", handle, code)
        return RefusedAnswer(_name(status), log) if status else CodeAnswer(code.raw, {}, log)

    def _call(self, name: str, *arguments: Any) -> int:
        result: int = getattr(self._library, f"__nvJitLink{name}{self._suffix}")(*arguments)
        return result

    def _log(self, handle: ctypes.c_void_p, kind: str) -> str:
        length = ctypes.c_size_t()
        if self._call(f"Get{kind}Size", handle, ctypes.byref(length)) or not length.value:
            return ""
        log = ctypes.create_string_buffer(length.value + 1)
        self._call(f"Get{kind}", handle, log)
        return bounded(log.value.decode(errors="replace"), MAX_RAW_LOG_CHARS // 2 - 1)


def _name(status: int) -> str:
    return f"NVJITLINK_{_STATUSES[status]}" if status < len(_STATUSES) else f"nvJitLinkResult {status}"
