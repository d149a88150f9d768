"""Requests that the data decide: no result, and no more is undefined than the error says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from atomr_mp import errors
from atomr_mp.protocol.libraries import blas
from atomr_mp_workers.requests.peers import Peer
from tests.deciding import DecidingWorker, Invert


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[DecidingWorker]:
    """A worker that has the library."""
    worker = DecidingWorker(monkeypatch)
    yield worker
    worker.close()


@pytest.mark.parametrize("named", ["out", "out, zeros", "", "nothing of this name"])
def test_only_outputs_that_an_error_names_are_undefined(worker: DecidingWorker, named: str) -> None:
    """All are if it names none, or one that there is not."""
    peer = worker.client(1)
    x, out, zeros = worker.array(peer, [4.0, 0.0, 2.0]), worker.array(peer, [0.0] * 3), worker.array(peer, [0.0])
    worker.library.names = named
    failed = worker.request(peer, Invert(x, out, zeros))
    readers = [worker.request(peer, blas.Nrm2(each), "blas") for each in (x, out, zeros)]
    worker.run()
    ended = worker.until_ended(peer, *readers)
    told = ended[failed]
    assert isinstance(told, errors.NumericalError)
    assert (told.library, told.batch, told.row, told.undefined) == ("deciding", -1, 1, named)
    assert told.message == "deciding.invert: x is 0"
    assert told.maybe_executed
    refused = [isinstance(ended[each], errors.GpuRefUndefined) for each in readers]
    assert refused == [False, True, named != "out"]


def test_outputs_that_are_well_again_are_read(worker: DecidingWorker) -> None:
    """An output that the error does not name was written: what was undefined there before is not any more."""
    peer = worker.client(1)
    x, out, zeros = worker.array(peer, [1.0, 0.0]), worker.array(peer, [0.0] * 2), worker.array(peer, [0.0])
    worker.library.names = ""
    worker.request(peer, Invert(worker.array(peer, [0.0]), worker.array(peer, [0.0]), zeros))
    worker.run()
    worker.library.names = "out"
    worker.request(peer, Invert(x, out, zeros))
    assert readable(worker, peer, zeros)
    assert not readable(worker, peer, out)
    worker.request(peer, Invert(worker.array(peer, [4.0, 2.0]), out, zeros))
    assert readable(worker, peer, out)


def readable(worker: DecidingWorker, peer: Peer, array: Any) -> bool:
    """Return whether a request may read an array."""
    worker.run()
    reader = worker.request(peer, blas.Nrm2(array), "blas")
    worker.run()
    return worker.until_ended(peer, reader)[reader] is None
