"""Landlock: a thread, and all that it starts, reach only the files that were named. An edge; Linux only.

See landlock(7). It needs no privileges. Calls of the kernel that Landlock does not know are `seccomp`'s.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_CREATE_RULESET: Final = 444
_ADD_RULE: Final = 445
_RESTRICT_SELF: Final = 446
"""Numbers of the calls, the same on all architectures."""

_VERSION: Final = 1
"""LANDLOCK_CREATE_RULESET_VERSION."""

_PATH_BENEATH: Final = 1
"""LANDLOCK_RULE_PATH_BENEATH."""

_READ: Final = 1 << 2 | 1 << 3
"""LANDLOCK_ACCESS_FS_READ_FILE and READ_DIR."""

_FILE_RIGHTS: Final = (0, 13, 14, 15, 15, 16)
"""How many rights to files there are, by version; the last also stands for later ones."""

_NET_SINCE: Final = 4
_SCOPED_SINCE: Final = 6

_PR_SET_NO_NEW_PRIVS: Final = 38


class _Ruleset(ctypes.Structure):
    """The kernel's landlock_ruleset_attr."""

    _fields_ = (("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _PathBeneath(ctypes.Structure):
    """The kernel's landlock_path_beneath_attr."""

    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def version() -> int:
    """Return the version of Landlock's interface, 0 where the kernel has none or has it switched off."""
    found: int = _LIBC.syscall(_long(_CREATE_RULESET), None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION))
    return max(0, found)


def restrict_to_reading(folders: Iterable[Path]) -> None:
    """Have this thread reach no file but those below some folders, which it may read, and no socket of the network.

    From version 6 on it can also send no signal to another process, and reach no abstract socket. Descriptors that are
    open stay as they are.

    Raises:
        OSError: The kernel refused, or has no Landlock.
    """
    found = version()
    if not found:
        raise OSError("this kernel has no Landlock")
    rights = _FILE_RIGHTS[min(found, len(_FILE_RIGHTS) - 1)]
    rules = _Ruleset((1 << rights) - 1, 3 if found >= _NET_SINCE else 0, 3 if found >= _SCOPED_SINCE else 0)
    size = 8 if found < _NET_SINCE else 16 if found < _SCOPED_SINCE else 24
    ruleset = _call(_CREATE_RULESET, ctypes.byref(rules), ctypes.c_size_t(size), ctypes.c_uint32(0))
    try:
        for folder in folders:
            opened = os.open(folder, os.O_PATH | os.O_CLOEXEC | os.O_DIRECTORY)
            try:
                rule = _PathBeneath(_READ, opened)
                _call(_ADD_RULE, ctypes.c_int(ruleset), _int(_PATH_BENEATH), ctypes.byref(rule), ctypes.c_uint32(0))
            finally:
                os.close(opened)
        give_up_privileges()
        _call(_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    finally:
        os.close(ruleset)


def give_up_privileges() -> None:
    """Have no program that this process starts gain privileges; Landlock and seccomp ask for that.

    Raises:
        OSError: The kernel refused.
    """
    zero = ctypes.c_ulong(0)
    if _LIBC.prctl(_int(_PR_SET_NO_NEW_PRIVS), ctypes.c_ulong(1), zero, zero, zero) != 0:
        raise _failed()


def _call(number: int, *arguments: object) -> int:
    result: int = _LIBC.syscall(_long(number), *arguments)
    if result < 0:
        raise _failed()
    return result


def _failed() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))


_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_long: Final = ctypes.c_long
_int: Final = ctypes.c_int
