"""Shuts itself in as the compiler's process does, and says how each thing that it tries then ends."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from atomr_mp_workers.compiling.process import landlock, seccomp

folder, outside = Path(sys.argv[1]), Path(sys.argv[2])
landlock.restrict_to_reading([folder])
seccomp.restrict_calls()


def syscall(number: int, *arguments: int) -> None:
    """Make a system call."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, arguments)) < 0:
        raise OSError(ctypes.get_errno(), "refused")


def thread() -> None:
    """Start a thread, which compilers may."""
    started = threading.Thread(target=lambda: None)
    started.start()
    started.join()


TRIES: dict[str, Callable[[], object]] = {
    "read-inside": (folder / "a.h").read_bytes,
    "list-inside": lambda: list(folder.iterdir()),
    "thread": thread,
    "ask-limit": lambda: resource.getrlimit(resource.RLIMIT_STACK),
    "read-outside": outside.read_bytes,
    "read-passwd": Path("/etc/passwd").read_bytes,
    "list-outside": lambda: list(outside.parent.iterdir()),
    "write-inside": lambda: (folder / "new").write_bytes(b""),
    "write-outside": lambda: outside.write_bytes(b""),
    "truncate": lambda: os.truncate(outside, 0),
    "chmod": lambda: outside.chmod(0o777),
    "times": lambda: os.utime(outside),
    "remove": outside.unlink,
    "unix-socket": lambda: socket.socket(socket.AF_UNIX),
    "tcp-socket": lambda: socket.socket(socket.AF_INET),
    "fork": os.fork,
    "exec": lambda: os.execv("/bin/true", ["true"]),
    "kill": lambda: os.kill(os.getppid(), 0),
    "set-limit": lambda: resource.setrlimit(resource.RLIMIT_CPU, (1, 1)),
    "parents-limit": lambda: resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (1, 1)),
    "priority": lambda: os.setpriority(os.PRIO_PROCESS, os.getppid(), 5),
    "group": os.setsid,
    "pidfd": lambda: os.pidfd_open(os.getppid()),
    "io-uring": lambda: syscall(425, 1, 0),
    "memory": lambda: os.open(f"/proc/{os.getppid()}/mem", os.O_RDONLY),
}
for name, attempt in TRIES.items():
    try:
        attempt()
        print(name, "done", flush=True)
    except (OSError, ValueError) as error:  # `resource` says the latter for EPERM
        print(name, type(error).__name__, flush=True)
print("end", flush=True)
signal.raise_signal(signal.SIGABRT)  # a thread may end its own process
