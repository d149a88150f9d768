"""No read or view excludes others once it has ended, though its client asks for nothing more."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import pytest

import atomr_mp
from atomr_mp import errors
from atomr_mp.client.memory.leases import MAX_UNHEARD
from atomr_mp.client.memory.refs import GpuRef
from tests.interrupted import Interrupted
from tests.support import BACKEND, KEEPER, Ledger, client_of, settled

LARGE: Final = 40_000
"""Elements of an array that its client reads where it is."""

OPEN: Final = MAX_UNHEARD + 40
"""More views than a client may end without hearing from the worker."""


@pytest.fixture(scope="module")
def shared() -> Iterator[atomr_mp.Pool]:
    """One pool of two devices for all tests; its client is the one that acts while the other idles."""
    with Ledger() as ledger, ledger.start(KEEPER, gpus=2) as started:
        started.wait_ready()
        yield started


@pytest.fixture
def idle(shared: atomr_mp.Pool) -> Iterator[atomr_mp.Pool]:
    """The other client."""
    with client_of(shared) as own:
        yield own


def borrows(shared: atomr_mp.Pool) -> int:
    """Return how many views and reads are open, as the worker has it."""
    return shared.device(0).statistics()["views"]


def lend(ref: GpuRef, idle: atomr_mp.Pool) -> None:
    """Have another device use the ref."""
    idle.call("Keeper.total", ref, device=1).result()


def part(ref: GpuRef, _idle: atomr_mp.Pool) -> None:
    """View a ref, and keep something that was made from the view without a copy, for a while."""
    made = memoryview(ref.view()[1:].reshape(3, -1))
    made.release()


def in_a_cycle(ref: GpuRef, _idle: atomr_mp.Pool) -> None:
    """Leave a view to the collector."""
    cycle: list[Any] = [ref.view()]
    cycle.append(cycle)


USES: Final[dict[str, Callable[[GpuRef, atomr_mp.Pool], object]]] = {
    "view": lambda ref, _: ref.view(),
    "writable view": lambda ref, _: ref.view(write=True).fill(3),
    "part of a view": part,
    "view in a cycle": in_a_cycle,
    "dlpack": lambda ref, _: np.from_dlpack(ref),
    "copy": lambda ref, _: ref.numpy(),
    "copy into an array": lambda ref, _: ref.numpy(out=np.empty(ref.shape)),
    "argument of a call on another device": lend,
}


@pytest.mark.skipif(BACKEND != "host", reason="views of a GPU's memory are no arrays of NumPy's")
@pytest.mark.parametrize("use", USES.values(), ids=list(USES))
def test_what_has_ended_excludes_nobody(
    shared: atomr_mp.Pool, idle: atomr_mp.Pool, use: Callable[[GpuRef, atomr_mp.Pool], object]
) -> None:
    """Each end reaches the worker, and another client writes, while the client makes no request."""
    mine = shared.device(0).zeros(LARGE + 2, "float64")[2:]
    theirs = idle.claim(mine.share())
    for _ in range(3):
        use(theirs, idle)
        gc.collect()
        assert settled(lambda: borrows(shared) == 0), "the client idles, and excludes others"
        mine.fill(2)


@pytest.mark.skipif(BACKEND != "host", reason="views of a GPU's memory need CuPy")
def test_any_number_of_ends_is_told(shared: atomr_mp.Pool, idle: atomr_mp.Pool) -> None:
    """One after the other, each when the one before was heard of, though no request of the client has an answer."""
    theirs = idle.claim(shared.device(0).zeros(LARGE, "float64").share())
    views = [theirs.view() for _ in range(OPEN)]
    for left in reversed(range(OPEN)):
        del views[-1]
        assert settled(lambda: borrows(shared) == left), f"of {OPEN} views {left} are open"  # noqa: B023 - called at once


@pytest.mark.skipif(BACKEND != "host", reason="views of a GPU's memory need CuPy")
def test_a_refused_view_leaves_nothing(shared: atomr_mp.Pool, idle: atomr_mp.Pool) -> None:
    """Also while its error, and all that its traceback shows, is kept."""
    mine = shared.device(0).zeros(LARGE, "float64")
    theirs = idle.claim(mine.share())
    view = mine.view(write=True)
    with pytest.raises(errors.BorrowConflict) as kept:
        theirs.view()
    with pytest.raises(errors.BorrowConflict):
        theirs.numpy()
    assert borrows(shared) == 1
    del view
    assert settled(lambda: borrows(shared) == 0)
    mine.fill(2)
    del kept


@pytest.mark.skipif(BACKEND != "host", reason="views of a GPU's memory need CuPy")
@pytest.mark.parametrize("write", ["by another client", "by the same client"])
@pytest.mark.parametrize("use", USES.values(), ids=list(USES))
def test_what_is_interrupted_excludes_nobody(
    shared: atomr_mp.Pool, idle: atomr_mp.Pool, use: Callable[[GpuRef, atomr_mp.Pool], object], write: str
) -> None:
    """Before each line in turn, and with the traceback kept: then the memory is written, by either client."""
    mine = shared.device(0).zeros(LARGE, "float64")
    theirs = idle.claim(mine.share())
    use(theirs, idle)
    gc.collect()
    line = 1

    def written() -> bool:
        try:
            mine.fill(line)
        except errors.BorrowConflict:
            return False
        return True

    while (interrupted := Interrupted(line)).by(lambda: use(theirs, idle)):
        if write == "by another client":
            assert settled(written), f"a borrow is left after an interrupt before line {line}"
        else:
            theirs.fill(line)  # its own requests come in the order in which it has made them
        line += 1
        del interrupted
    assert line > 50, "hardly anything was interrupted"
