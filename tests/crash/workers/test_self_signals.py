"""A worker's notes of the signals that it sends to itself, read on its board by another process."""

from __future__ import annotations

import inspect
import mmap
import os
import signal
import subprocess
import sys
from typing import Final

import pytest

from atomr_mp.protocol.board import BOARD_BYTES, BoardReader

PREAMBLE: Final = """
import mmap, os, signal, sys, threading
from atomr_mp.protocol.board import BoardWriter
from atomr_mp_workers.boot import self_signals

self_signals.wrap()
self_signals.wrap()  # as a worker that was forked by the zygote does
writer = BoardWriter(memoryview(mmap.mmap(int(sys.argv[1]), 0)))
self_signals.note_on(writer)
"""

SENDERS: Final = {
    "kill": "os.kill(os.getpid(), {0})",
    "kill of the group": "os.kill(0, {0})",
    "kill of the group by its number": "os.kill(-os.getpgrp(), {0})",
    "kill of a thread": "os.kill(threading.get_native_id(), {0})",
    "kill of a thread beside": "other = threading.Thread(target=signal.pause, daemon=True); other.start(); "
    "os.kill(other.native_id, {0})",
    "killpg": "os.killpg(os.getpgrp(), {0})",
    "killpg of zero": "os.killpg(0, {0})",
    "raise_signal": "signal.raise_signal({0})",
    "pthread_kill": "signal.pthread_kill(threading.get_ident(), {0})",
    "pidfd": "signal.pidfd_send_signal(os.pidfd_open(os.getpid()), {0})",
    "pidfd of /proc": "signal.pidfd_send_signal(os.open(f'/proc/{{os.getpid()}}', os.O_RDONLY), {0})",
    "posix": "import posix; posix.kill(os.getpid(), {0})",
    "on a thread": "t = threading.Thread(target=os.kill, args=(os.getpid(), {0})); t.start(); t.join()",
    "a number that is like an integer": "import numpy; os.kill(numpy.int64(os.getpid()), numpy.int64({0}))",
}

DESCRIBED: Final = [
    (f"{module}.{name}", name, str(inspect.signature(getattr(sys.modules[module], name))))
    for module, name in [
        ("os", "kill"),
        ("os", "killpg"),
        ("signal", "raise_signal"),
        ("signal", "pthread_kill"),
        ("signal", "pidfd_send_signal"),
    ]
]


def signalled(code: str, *, ends_by: int = 0) -> int:
    """Run code in a process of its own, with the functions wrapped; return what its board shows after its end."""
    board_fd = os.memfd_create("board")
    try:
        os.ftruncate(board_fd, BOARD_BYTES)
        with mmap.mmap(board_fd, 0) as memory:
            done = subprocess.run(
                [sys.executable, "-c", PREAMBLE + code, str(board_fd)],
                pass_fds=[board_fd],
                process_group=0,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert done.returncode == -ends_by, done.stderr
            view = memoryview(memory)
            reader = BoardReader(view)
            found = reader.signalled
            reader.release()
            view.release()
            return found
    finally:
        os.close(board_fd)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("how", SENDERS)
def test_a_signal_that_ends_its_sender_is_on_the_board(how: str, number: int) -> None:
    """However it is sent; and no other is."""
    code = SENDERS[how].format(int(number))
    assert signalled(code + "\nsignal.pause()", ends_by=number) == 1 << number - 1


def test_what_was_survived_is_not_on_the_board() -> None:
    """So a later end by the same signal is unexplained: it may have come from outside."""
    code = "signal.signal(15, lambda *_: None)\nos.kill(os.getpid(), 15)\nos.kill(os.getpid(), 0)\n"
    assert signalled(code) == 0
    later = "import ctypes\nsignal.signal(15, signal.SIG_DFL)\nctypes.CDLL(None).kill(os.getpid(), 15)\nsignal.pause()"
    assert signalled(code + later, ends_by=signal.SIGTERM) == 0


def test_what_waits_to_be_delivered_stays_on_the_board() -> None:
    """A blocked signal ends the process when it is let in."""
    code = "signal.pthread_sigmask(0, [15]); os.kill(os.getpid(), 15); signal.pthread_sigmask(1, [15])"
    assert signalled(code, ends_by=signal.SIGTERM) == 1 << signal.SIGTERM - 1


def test_what_is_sent_to_others_is_not_noted() -> None:
    """A child's signals to itself are not noted either, though it has the same board mapped."""
    code = """
child = os.fork()
if child == 0:
    os.kill(os.getpid(), 9)
os.waitpid(child, 0)
child = os.fork()
if child == 0:
    signal.pause()
os.kill(child, 9)
os.waitpid(child, 0)
import ctypes
ctypes.CDLL(None).kill(os.getpid(), 9)
"""
    assert signalled(code, ends_by=signal.SIGKILL) == 0


def test_bad_arguments_are_told_as_ever() -> None:
    """By the same exceptions, and nothing is noted."""
    code = """
calls = ["os.kill()", "os.kill(1)", "os.kill('1', 9)", "os.kill(os.getpid(), 65000)", "os.kill(2**80, 9)",
         "os.kill(pid=1, signal=9)", "os.killpg(-1, 9)", "os.kill(os.getpid(), -1)", "signal.raise_signal(1000)",
         "signal.raise_signal(None)", "signal.pthread_kill(threading.get_ident(), 1000)", "os.kill(os.getpid(), 9.0)",
         "signal.pidfd_send_signal(-1, 9)", "signal.pidfd_send_signal(0, 9)", "os.kill(os.getpid(), 9, 1)"]
def outcome(call):
    try:
        return eval(call)
    except Exception as error:
        return type(error), str(error)
found = [outcome(call) for call in calls]
for module in (os, signal):
    for name in ("kill", "killpg", "raise_signal", "pthread_kill", "pidfd_send_signal"):
        if hasattr(module, name):
            setattr(module, name, getattr(module, name).__wrapped__)
assert found == [outcome(call) for call in calls], found
assert all(isinstance(each, tuple) for each in found), found
"""
    assert signalled(code) == 0


def test_they_look_as_before() -> None:
    """Name, signature, documentation; and they can be pickled."""
    code = f"""
import inspect, pickle
for function, name, signature in {DESCRIBED!r}:
    found = eval(function)
    assert (found.__name__, str(inspect.signature(found))) == (name, signature), inspect.signature(found)
    assert found.__doc__ == found.__wrapped__.__doc__
    assert not hasattr(found.__wrapped__, "__wrapped__")
    assert pickle.loads(pickle.dumps(found)) is found
"""
    assert signalled(code) == 0
