"""The rules that this package checks of itself while its tests run."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomr_mp import checks
from atomr_mp.protocol import values
from atomr_mp.protocol.zmtp import stream
from atomr_mp.wire.connection import Connection
from atomr_mp_workers.device.host_memory import HostSlab


class Table:
    """State with an owner."""

    def __init__(self) -> None:
        self.entries: list[int] = []

    def add(self, entry: int) -> None:
        """Add an entry, by the private way."""
        self._hear(entry)

    @property
    def count(self) -> int:
        """Number of entries."""
        return len(self.entries)

    def look(self) -> bool:
        """Return whether there are entries; any thread."""
        return bool(self.entries)

    def _hear(self, entry: int) -> None:
        self.entries.append(entry)


def elsewhere(function: Callable[[], object]) -> BaseException | None:
    """Call something on another thread; return what it has raised."""
    raised: list[BaseException] = []

    def call() -> None:
        try:
            function()
        except BaseException as error:  # noqa: BLE001 - it is looked at
            raised.append(error)

    thread = threading.Thread(target=call, name="another")
    thread.start()
    thread.join()
    return raised[0] if raised else None


def test_checks_are_on_in_tests() -> None:
    """Unless whoever starts them has said otherwise."""
    assert checks.ON, "ATOMR_MP_CHECKS is not 1"


def test_what_a_thread_owns_is_refused_to_others() -> None:
    """Methods, properties and listeners; the error names the method and the thread."""

    class Owned(Table):
        add, count, look, _hear = Table.add, Table.count, Table.look, Table._hear

    table = checks.guard(Owned, by_maker=True, also={"_hear"}, but={"look"})()
    table.add(1)
    assert table.count == 1
    for use in (lambda: table.add(2), lambda: table.count, lambda: table._hear(3)):
        error = elsewhere(use)
        assert isinstance(error, checks.BrokenRuleError)
        assert "'another'" in str(error)
    assert elsewhere(table.look) is None
    assert table.entries == [1]


def test_what_a_lock_guards_is_refused_to_who_does_not_hold_it() -> None:
    """Also while another thread holds it."""

    class Guarded(Table):
        add, count = Table.add, Table.count

    lock, table = checks.HeldLock(), checks.guard(Guarded)()
    table.add(1)  # nobody's yet
    checks.entrust(lock, table)
    with pytest.raises(checks.BrokenRuleError, match=r"add was called"):
        table.add(2)
    with lock:
        table.add(3)
        assert isinstance(elsewhere(lambda: table.add(4)), checks.BrokenRuleError)
        assert not lock.acquire(blocking=False)
    with pytest.raises(checks.BrokenRuleError):
        _ = table.count
    assert table.entries == [1, 3]


def test_without_checks_nothing_is_wrapped() -> None:
    """A release calls the methods themselves."""
    code = """if True:
        import threading
        from atomr_mp import checks
        from atomr_mp.protocol import values
        class Table:
            def add(self): pass
        method = Table.add
        assert checks.owned(by_maker=True)(Table) is Table and Table.add is method
        assert checks.checks_frames(method) is method
        assert type(checks.lock()) is type(threading.Lock())
        assert values._frame_of is bytes
    """
    subprocess.run([sys.executable, "-c", code], check=True, env={"ATOMR_MP_CHECKS": "0"})


@contextlib.contextmanager
def connection() -> Iterator[Connection]:
    """Make a connection without a reader."""
    ours, theirs = socket.socketpair()
    with theirs:
        made = Connection(ours, stream.Dealer(b"peer", b"name", b"word"), lambda _: None)
        yield made
        made.close()


@given(st.integers(values.INLINE_BYTES + 1, 4 * values.INLINE_BYTES), st.integers(0, 2**32))
def test_user_memory_is_never_sent(nbytes: int, seed: int) -> None:
    """Encoded frames are sent; views of arrays are refused, and frames that have changed since."""
    array = np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)
    _, frames, _ = values.encode(array)
    received = memoryview(bytearray(array.tobytes()))[seed % nbytes :]
    with connection() as sending:
        sending.send(b"header", [*frames, received, b"plain"])
        for view in (array.data, array.data[seed % nbytes :], array[1:].data):
            with pytest.raises(checks.BrokenRuleError, match=r"frame 1 of 2 .* numpy\.ndarray"):
                sending.send(b"header", [*frames, view])
        changed = checks.CheckedFrame(frames[0])
        changed.digest ^= 1
        with pytest.raises(checks.BrokenRuleError, match="has changed since"):
            sending.send(b"header", [changed])


@given(st.integers(0, 2**17), st.integers(1, 2**18))
def test_freed_memory_is_no_number(offset: int, nbytes: int) -> None:
    """The filler is NaN in each type of floating point, and lies where it was asked for."""
    slab = HostSlab(2**19, "test")
    whole = slab.bytes(None, 0, slab.nbytes)
    slab.fill(offset, nbytes, checks.FILLER)
    assert (whole[offset : offset + nbytes] == checks.FILLER).all()
    assert not whole[:offset].any()
    assert not whole[offset + nbytes :].any()
    for dtype in ("float16", "float32", "float64"):
        assert np.isnan(np.frombuffer(bytes([checks.FILLER]) * 8, dtype)).all()
