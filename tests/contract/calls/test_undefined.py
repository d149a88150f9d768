"""What a failed request should have written is not read as if it had: on real pools, from a client's side."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import atomr_mp
from atomr_mp import errors
from tests.support import ACTORS, Ledger, settled, wait_sent

UNDOING = f"{ACTORS}/undoing.py:Undoing"


@pytest.fixture(scope="module")
def shared() -> Iterator[atomr_mp.Pool]:
    """One pool of two devices for all tests: none of them ends a worker."""
    with Ledger() as ledger, ledger.start(UNDOING, gpus=2) as started:
        yield started


def failed(pool: atomr_mp.Pool, ref: Any, method: str = "fail") -> None:
    """Have a request fail that writes a ref."""
    with pytest.raises(errors.ActorFailed, match="half done"):
        pool.call(f"Undoing.{method}", ref, device=0).result()


def refused(use: Callable[[], object]) -> errors.GpuRefUndefined:
    """Return what a use is refused with."""
    with pytest.raises(errors.GpuRefUndefined) as told:
        use()
    return told.value


def total(pool: atomr_mp.Pool, ref: Any, method: str = "total", device: int = 0) -> Any:
    """Return the sum of a ref's elements."""
    return pool.call(f"Undoing.{method}", ref, device=device).result()


@pytest.mark.parametrize("method", ["fail", "fail_in_batch"])
def test_a_reader_after_a_failed_writer_is_told_which_failed(pool: atomr_mp.Pool, method: str) -> None:
    """By every way to read: requests, copies, views, other devices, other refs to the same bytes."""
    ref = pool.device(0).put(np.ones(1000))
    failed(pool, ref, method)
    told = refused(lambda: total(pool, ref))
    assert (told.failed_method, told.failed_with, told.device) == (f"Undoing.{method}", "actor_failed", 0)
    assert told.failed_request > 0
    assert "half done" in told.message
    assert not told.maybe_executed
    other = pool.device(1).zeros(1000, "float64")
    for use in (
        ref.numpy,
        ref.view,
        lambda: ref.view(write=True),
        ref.share,
        lambda: total(pool, ref, "total_on_thread"),
        lambda: total(pool, ref[500:]),
        lambda: total(pool, ref, device=1),
        lambda: ref.copy_to(other),
        lambda: pool.device(0).blas.dot(ref, ref).result(),
    ):
        refused(use)
    assert other.numpy().sum() == 0


def test_only_what_overlaps_is_refused(pool: atomr_mp.Pool) -> None:
    """The rest of the buffer is as it was."""
    ref = pool.device(0).put(np.ones(1000))
    failed(pool, ref[200:300])
    refused(ref[:201].numpy)
    refused(ref[299:].numpy)
    assert ref[:200].numpy().sum() == 200
    assert total(pool, ref[300:]) == 700


def test_a_write_that_covers_it_defines_it_again(pool: atomr_mp.Pool) -> None:
    """Without gaps, by any request; one that leaves something out does not."""
    ref = pool.device(0).put(np.ones(1000))
    failed(pool, ref[200:300])
    ref[200:299].fill(2.0)
    ref[200:300:2].fill(2.0)
    refused(ref.numpy)
    ref[100:300].fill(3.0)
    assert ref.numpy().sum() == 800 + 600


def test_the_failed_request_made_again_defines_it_again(pool: atomr_mp.Pool) -> None:
    """Also one that leaves gaps, for it is the same that is written."""
    ref = pool.device(0).put(np.ones((10, 10)))
    column = ref[:, 3]
    failed(pool, column)
    refused(ref.numpy)
    pool.call("Undoing.fill", column, 5.0, device=0).result()
    assert ref.numpy().sum() == 90 + 50


def test_an_output_that_is_only_written_may_be_undefined(pool: atomr_mp.Pool) -> None:
    """A factor of zero reads nothing; another one does."""
    device = pool.device(0)
    a, c = device.put(np.eye(4)), device.put(np.ones((4, 4)))
    failed(pool, c)
    refused(lambda: device.blas.gemm(a, a, c, beta=1.0).result())
    device.blas.gemm(a, a, c).result()
    np.testing.assert_array_equal(c.numpy(), np.eye(4))


def test_the_owner_may_accept_it(pool: atomr_mp.Pool) -> None:
    """As it is, for a method may have raised before it wrote."""
    ref = pool.device(0).put(np.ones(1000))
    failed(pool, ref)
    ref.accept()
    assert total(pool, ref) == 998
    ref.accept()  # again


def test_a_reader_behind_a_running_writer_is_refused_when_that_fails(pool: atomr_mp.Pool, ledger: Ledger) -> None:
    """On the loop, on a thread, in a library, and as a view."""
    ref = pool.device(0).put(np.ones(1000))
    with ledger.gate("writer") as gate:
        writer = pool.call("Undoing.fail_slowly", gate.path, ref, device=0)
        gate.wait()
        readers = [
            pool.call("Undoing.total", ref, device=0),
            pool.call("Undoing.total_on_thread", ref, device=0),
            pool.device(0).blas.dot(ref, ref),
        ]
        gate.open()
        with pytest.raises(errors.ActorFailed):
            writer.result()
        for reader in readers:
            assert refused(reader.result).failed_method == "Undoing.fail_slowly"
    refused(ref.view)
    ref.accept()
    assert ref.view(write=True).sum() == 998  # no view is left that excludes this one


def test_a_writer_that_never_started_is_missed_only_by_who_was_behind_it(pool: atomr_mp.Pool, ledger: Ledger) -> None:
    """It has left the content as it was."""
    ref = pool.device(0).put(np.ones(1000))
    with ledger.gate("held") as gate:
        held = pool.call("Undoing.hold", gate.path, device=0)
        gate.wait()
        writer = pool.call("Undoing.fill", ref, 2.0, device=0, deadline_s=2.0)  # within which it has to be sent
        reader = pool.call("Undoing.total", ref, device=0)
        wait_sent(writer, reader)
        apart = pool.call("Undoing.total", pool.device(1).put(np.ones(3)), device=1)
        assert settled(lambda: time.monotonic_ns() > writer.deadline_ns)
        gate.open()
        held.result()
        with pytest.raises(errors.DeadlineExceeded):
            writer.result()
        told = refused(reader.result)
        assert (told.failed_method, told.failed_with) == ("Undoing.fill", "deadline_exceeded")
        assert apart.result() == 3
    assert total(pool, ref) == 1000


def test_a_writer_that_its_client_takes_back_when_late_is_missed_too(pool: atomr_mp.Pool, ledger: Ledger) -> None:
    """Whether the client or the worker sees first that the deadline has passed is all the same."""
    ref = pool.device(0).put(np.ones(1000))
    with ledger.gate("held") as gate:
        held = pool.call("Undoing.hold_on_thread", gate.path, device=0)
        gate.wait()
        writer = pool.call("Undoing.fail_slowly", gate.path, ref, device=0, deadline_s=2.0)  # to be sent within it
        reader = pool.call("Undoing.total_on_thread", ref, device=0)
        wait_sent(writer, reader)
        with pytest.raises(errors.DeadlineExceeded):
            writer.result()
        assert pool.call("Undoing.total", pool.device(0).put(np.ones(3)), device=0).result() == 3  # has heard of it
        gate.open()
        held.result()
        told = refused(reader.result)
        assert (told.failed_method, told.failed_with) == ("Undoing.fail_slowly", "deadline_exceeded")
    assert total(pool, ref) == 1000


def test_neither_cancelling_nor_a_refused_call_undefines(pool: atomr_mp.Pool, ledger: Ledger) -> None:
    """Who cancels knows it; what is wrong with a call is raised where it is made."""
    ref = pool.device(0).put(np.ones(1000))
    with ledger.gate("held") as gate:
        held = pool.call("Undoing.hold_on_thread", gate.path, device=0)
        gate.wait()
        writer = pool.call("Undoing.fail_slowly", gate.path, ref, device=0)
        reader = pool.call("Undoing.total_on_thread", ref, device=0)
        wait_sent(writer, reader)
        writer.cancel()
        assert pool.call("Undoing.total", pool.device(0).put(np.ones(3)), device=0).result() == 3  # has heard of it
        gate.open()
        held.result()
        assert reader.result() == 1000
    with pytest.raises(errors.InvalidRequest):
        pool.call("Undoing.fill", ref, "a text", device=0).result()
    assert total(pool, ref) == 1000


def test_what_was_computed_of_undefined_content_is_undefined_too(pool: atomr_mp.Pool, ledger: Ledger) -> None:
    """A chain behind a failed writer, whose end is not read."""
    device = pool.device(0)
    first, last = device.put(np.ones(1000)), device.zeros(1000, "float64")
    with ledger.gate("writer") as gate:
        writer = pool.call("Undoing.fail_slowly", gate.path, first, device=0)
        gate.wait()
        middle = device.blas.copy(first, last)
        end = pool.call("Undoing.total", last, device=0)
        gate.open()
        begun = refused(middle.result).maybe_executed
        refused(end.result)
        with pytest.raises(errors.ActorFailed):
            writer.result()
    if begun:  # its stream went on before the failure was known
        refused(last.numpy)
    else:
        assert last.numpy().sum() == 0


@pytest.mark.parametrize("n", [3, 100_000])
@pytest.mark.parametrize("method", ["fill", "fill_in_batch"])
def test_what_is_written_has_to_be_a_ref(pool: atomr_mp.Pool, method: str, n: int) -> None:
    """Of an array by value, in the message or in shared memory, no caller would see what was written."""
    with pytest.raises(errors.InvalidRequest, match=r"target.* is written, so it must be a ref"):
        pool.call(f"Undoing.{method}", np.ones(n), 2.0, device=0).result()
    if method == "fill_in_batch":
        with pytest.raises(errors.InvalidRequest, match="is written, so it must be a ref"):
            list(pool.map("Undoing.fail_in_batch", [np.ones(n)] * 3))
