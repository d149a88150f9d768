"""A filter of system calls: what is left cannot reach another process, a socket, or a file's owner and mode. An edge.

Landlock keeps the compiler's process from opening files. It does not know of sockets with a path, through which a
process of this user would be taken for a client of the pool, nor of `chmod`, priorities, and memory of other processes.
Those calls fail with EPERM here. Calls that Linux got from 5.1 on fail with ENOSYS: the C library has earlier ones in
their place for what a compiler does. See seccomp(2); the filter is a program for the kernel's BPF machine.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from typing import Final, NamedTuple

from atomr_mp_workers.compiling.process.landlock import give_up_privileges

_CALLS: Final[dict[str, tuple[int, int]]] = {
    # sockets
    "socket": (41, 198),
    "socketpair": (53, 199),
    "connect": (42, 203),
    "bind": (49, 200),
    "listen": (50, 201),
    "accept": (43, 202),
    "accept4": (288, 242),
    "sendmsg": (46, 211),
    "recvmsg": (47, 212),
    # other processes: programs, signals, memory, priorities
    "execve": (59, 221),
    "execveat": (322, 281),
    "fork": (57, -1),
    "vfork": (58, -1),
    "kill": (62, 129),
    "tkill": (200, 130),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "setpgid": (109, 154),
    "setsid": (112, 157),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "userfaultfd": (323, 282),
    "perf_event_open": (298, 241),
    "bpf": (321, 280),
    "prctl": (157, 167),
    "setrlimit": (160, 164),
    "setpriority": (141, 140),
    "sched_setaffinity": (203, 122),
    "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118),
    "sched_setattr": (314, 274),
    "ioprio_set": (251, 30),
    # memory and queues that processes share
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "msgget": (68, 186),
    "msgctl": (71, 187),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "semget": (64, 190),
    "semctl": (66, 191),
    "semop": (65, 193),
    "semtimedop": (220, 192),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    # files' owners, modes, times and attributes, which Landlock leaves alone
    "chmod": (90, -1),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "chown": (92, -1),
    "fchown": (93, 55),
    "lchown": (94, -1),
    "fchownat": (260, 54),
    "utime": (132, -1),
    "utimes": (235, -1),
    "futimesat": (261, -1),
    "utimensat": (280, 88),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "truncate": (76, 45),
    "quotactl": (179, 60),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "inotify_init": (253, -1),
    "inotify_init1": (294, 26),
    "fanotify_init": (300, 262),
    # name spaces and mounts
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "io_setup": (206, 0),
    # the machine, which only root may change, and a worker in a container is root
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "reboot": (169, 142),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "syslog": (103, 116),
    "vhangup": (153, 58),
    "iopl": (172, -1),
    "ioperm": (173, -1),
    "setuid": (105, 146),
    "setgid": (106, 144),
    "setreuid": (113, 145),
    "setregid": (114, 143),
    "setresuid": (117, 147),
    "setresgid": (119, 149),
    "setgroups": (116, 159),
    "capset": (126, 91),
}
"""Calls that fail, with their numbers on x86-64 and on arm64; -1 where there is no such call."""

_NEWER: Final = 424
"""The first number of the calls that came with Linux 5.1, when architectures began to share numbers. The calls of
x86-64's x32 form are above it, too."""


class _Machine(NamedTuple):
    """An architecture: its tag in the kernel, and calls whose arguments are looked at."""

    tag: int
    clone: int
    prlimit64: int
    tgkill: int


_MACHINES: Final = {
    "x86_64": (0, _Machine(0xC000003E, 56, 302, 234)),
    "aarch64": (1, _Machine(0xC00000B7, 220, 261, 131)),
}


def is_known() -> bool:
    """Return whether the numbers of this machine's calls are known here."""
    return platform.machine() in _MACHINES


def restrict_calls() -> None:
    """Have the calls that are listed here fail in this thread, and in all that it starts from now on.

    Raises:
        OSError: The kernel refused, or the machine is none that is known here.
    """
    if not is_known():
        raise OSError(f"the system calls of {platform.machine()} are not known")
    program = _program(*_MACHINES[platform.machine()], os.getpid())
    give_up_privileges()
    code = ctypes.create_string_buffer(program, len(program))
    filled = _Program(len(program) // 8, ctypes.addressof(code))
    zero = ctypes.c_ulong(0)
    mode = ctypes.c_ulong(_SECCOMP_MODE_FILTER)
    if _LIBC.prctl(ctypes.c_int(_PR_SET_SECCOMP), mode, ctypes.byref(filled), zero, zero) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _program(column: int, machine: _Machine, pid: int) -> bytes:
    """Return the filter: each instruction is a code, two distances to jump, and a value."""
    listed = [each[column] for each in _CALLS.values() if each[column] >= 0]
    tail = [
        # clone: threads only.
        (_JUMP_IF_EQUAL, 0, 2, machine.clone),
        (_LOAD, 0, 0, _ARGUMENT),
        (_JUMP_IF_SET, _ALLOW, _DENY, _CLONE_THREAD),
        # prlimit64: to ask for limits, not to set them.
        (_JUMP_IF_EQUAL, 0, 4, machine.prlimit64),
        (_LOAD, 0, 0, _ARGUMENT + 16),
        (_JUMP_IF_EQUAL, 0, _DENY, 0),
        (_LOAD, 0, 0, _ARGUMENT + 20),
        (_JUMP_IF_EQUAL, _ALLOW, _DENY, 0),
        # tgkill: to itself, as `abort` does.
        (_JUMP_IF_EQUAL, 0, _ALLOW, machine.tgkill),
        (_LOAD, 0, 0, _ARGUMENT),
        (_JUMP_IF_EQUAL, _ALLOW, _DENY, pid),
    ]
    lines = [
        (_LOAD, 0, 0, 4),
        (_JUMP_IF_EQUAL, 1, 0, machine.tag),
        (_RETURN, 0, 0, _KILL_PROCESS),
        (_LOAD, 0, 0, 0),
        (_JUMP_IF_AT_LEAST, _ABSENT, 0, _NEWER),
        *((_JUMP_IF_EQUAL, _DENY, 0, number) for number in listed),
        *tail,
    ]
    ends = {_ALLOW: _RETURN_ALLOW, _DENY: _RETURN_ERROR | errno.EPERM, _ABSENT: _RETURN_ERROR | errno.ENOSYS}
    places = {mark: len(lines) + number for number, mark in enumerate(ends)}
    written = [
        struct.pack("<HBBI", code, *(places[to] - at - 1 if to in places else to for to in (yes, no)), value)
        for at, (code, yes, no, value) in enumerate(lines)
    ]
    return b"".join(written) + b"".join(struct.pack("<HBBI", _RETURN, 0, 0, value) for value in ends.values())


class _Program(ctypes.Structure):
    """The kernel's sock_fprog."""

    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_void_p))


_ALLOW: Final = -1
_DENY: Final = -2
_ABSENT: Final = -3
"""Marks of the program's ends, in place of distances."""

_LOAD: Final = 0x20
"""A word of the call into the accumulator: 0 is the number, 4 the architecture, 16 the first argument's lower half."""
_JUMP_IF_EQUAL: Final = 0x15
_JUMP_IF_AT_LEAST: Final = 0x35
_JUMP_IF_SET: Final = 0x45
_RETURN: Final = 0x06
_ARGUMENT: Final = 16
_CLONE_THREAD: Final = 0x10000
_KILL_PROCESS: Final = 0x80000000
_RETURN_ERROR: Final = 0x00050000
_RETURN_ALLOW: Final = 0x7FFF0000
_PR_SET_SECCOMP: Final = 22
_SECCOMP_MODE_FILTER: Final = 2
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
