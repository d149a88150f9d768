"""Data connections that end while their worker lives: the client reconnects, and only calls on them are lost."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import socket
from collections.abc import Iterator

import numpy as np
import pytest

import atomr_mp
from atomr_mp import errors
from atomr_mp.client.lanes.link_life import MOST_FAILURES
from atomr_mp.operator.doctor import examine
from atomr_mp.operator.session import OperatorSession
from atomr_mp.protocol.messages.data import MAX_LANES
from atomr_mp.supervision.audit.findings import State
from tests.support import (
    ACTORS,
    BACKEND,
    DEADLINE_S,
    KEEPER,
    Ledger,
    client_of,
    local_client,
    open_descriptors,
    settled,
    stopped,
)

CUTTING = f"{ACTORS}/cutting.py:Cutting"
UNDOING = f"{ACTORS}/undoing.py:Undoing"
HOW = ["shut", "write", "message"]


@pytest.fixture(scope="module")
def shared() -> Iterator[atomr_mp.Pool]:
    """One pool for all tests that count nothing in its actor, and need no other client's end."""
    with Ledger() as ledger, ledger.start(CUTTING) as started:
        yield started


@pytest.mark.parametrize("how", HOW)
def test_a_lost_connection_is_made_again(pool: atomr_mp.Pool, how: str) -> None:
    """Its call ends typed, long before its deadline; callers without calls on it notice nothing."""
    with atomr_mp.connect(run_dir=pool.run_dir) as bystander:
        pid = pool.call("Cutting.pid").result()
        assert bystander.call("Cutting.pid").result() == pid
        for _ in range(3):
            with pytest.raises(errors.ConnectionLost, match=r"Cutting\.cut came; its worker lives") as lost:
                pool.call("Cutting.cut", how, deadline_s=10 * DEADLINE_S).result(DEADLINE_S)
            assert lost.value.maybe_executed
            assert (lost.value.device, lost.value.generation) == (0, pool.devices[0].generation)
            assert pool.call("Cutting.pid").result(DEADLINE_S) == pid
            with contextlib.suppress(errors.ConnectionLost):  # it may be sent before anybody has looked
                assert bystander.call("Cutting.pid").result(DEADLINE_S) == pid
            assert bystander.call("Cutting.pid").result(DEADLINE_S) == pid


@pytest.mark.parametrize("how", HOW)
def test_what_may_run_twice_is_sent_again(ledger: Ledger, how: str) -> None:
    """It goes on the new connection, which counts as a replay, or as an attempt of a map's item."""
    with ledger.start(CUTTING) as pool:
        assert pool.call("Cutting.cut_once", how).result(DEADLINE_S) == 2
    with ledger.start(CUTTING, run_dir="none") as pool:
        assert list(pool.map("Cutting.cut_once", [how])) == [2]
    with ledger.start(CUTTING, run_dir="none") as pool, pytest.raises(errors.ConnectionLost):
        list(pool.map("Cutting.cut_once", [how], attempts=1))
    with (
        ledger.start(CUTTING, run_dir="none", max_replays=0) as pool,
        pytest.raises(errors.ConnectionLost),
    ):
        pool.call("Cutting.cut_once", how).result(DEADLINE_S)


@pytest.mark.parametrize("how", HOW)
def test_it_is_so_in_event_loops_and_for_callbacks(ledger: Ledger, how: str) -> None:
    """Each loop has its own connection; the loss is noticed without a waiting thread."""

    async def use(pool: atomr_mp.Pool) -> None:
        pid = await pool.call("Cutting.pid")
        replies = [pool.call("Cutting.cut_once", how), pool.call("Cutting.pid")]
        async with asyncio.timeout(DEADLINE_S):
            assert await replies[0] == 2
            with contextlib.suppress(errors.ConnectionLost):  # unless its answer came before
                assert await replies[1] == pid
            assert await pool.call("Cutting.pid") == pid

    with ledger.start(CUTTING) as pool:
        asyncio.run(use(pool))


@pytest.mark.parametrize("how", HOW)
def test_leases_of_answers_that_never_arrived_come_back(pool: atomr_mp.Pool, how: str) -> None:
    """The worker learns which answers were not read on the lost connection."""
    for _ in range(2):
        with pytest.raises(errors.ConnectionLost):
            pool.call("Cutting.cut_and_keep", how).result(DEADLINE_S)
        assert settled(lambda: pool.device(0).statistics()["leases"] == 0)


@pytest.mark.parametrize("how", HOW)
def test_they_come_back_though_many_other_connections_came_before_that(pool: atomr_mp.Pool, how: str) -> None:
    """The worker forgets idle connections, but not what it has sent on them."""
    lost = pool.call("Cutting.cut_and_keep", how)
    for _ in range(2 * MAX_LANES):
        with contextlib.suppress(errors.ConnectionLost):  # of the first, if the cut came behind it
            asyncio.run(_pid(pool))
    with pytest.raises(errors.ConnectionLost):
        lost.result(DEADLINE_S)
    assert settled(lambda: pool.device(0).statistics()["leases"] == 0)


async def _pid(pool: atomr_mp.Pool) -> object:
    return await pool.call("Cutting.pid")


def test_releases_that_were_lost_are_repeated(pool: atomr_mp.Pool) -> None:
    """Every later call waits for them in the worker, and would until its deadline."""
    with atomr_mp.connect(run_dir=pool.run_dir) as bystander:
        refs = [bystander.device(0).put(np.zeros(10)) for _ in range(3)]
        with pytest.raises(errors.ConnectionLost):
            pool.call("Cutting.cut", "shut").result(DEADLINE_S)
        while refs:
            refs.pop().free()
        assert bystander.call("Cutting.total", np.ones(10)).result(DEADLINE_S) == 10
        assert bystander.device(0).statistics()["leases"] == 0
        assert settled(lambda: bystander.call("Cutting.pid").result() and not unacknowledged(bystander))


def test_releases_that_were_lost_are_repeated_for_event_loops(pool: atomr_mp.Pool) -> None:
    """They go by the threads' connection, on which no thread waits."""

    async def use(client: atomr_mp.Pool) -> None:
        refs = [client.device(0).put(np.zeros(10)) for _ in range(3)]
        with pytest.raises(errors.ConnectionLost):
            await client.call("Cutting.cut", "shut")
        while refs:
            refs.pop().free()
        async with asyncio.timeout(DEADLINE_S):
            for _ in range(2):
                assert await client.call("Cutting.total", np.ones(10)) == 10

    with client_of(pool) as client:
        asyncio.run(use(client))
        assert client.device(0).statistics()["leases"] == 0


@pytest.mark.parametrize("writes", [True, False])
def test_what_was_called_after_a_lost_writer_is_not_sent(pool: atomr_mp.Pool, *, writes: bool) -> None:
    """It relied on the writer. Calls that use other memory, or follow a reader, are sent."""
    ref, other = pool.device(0).put(np.zeros(10)), pool.device(0).put(np.zeros(5))
    with stopped(pool.devices[0].pid):  # so that it is not answered before the cut
        lost = pool.call("Cutting.add" if writes else "Cutting.total", ref[:4])
        cut_here(pool)
        waiting = [pool.call("Cutting.total", each) for each in (ref[2:], other)]
    assert isinstance(lost.exception(DEADLINE_S), errors.ConnectionLost)
    refused = waiting[0].exception(DEADLINE_S)
    if writes:
        assert isinstance(refused, errors.GpuRefUndefined)
        assert (refused.failed_method, refused.failed_with) == ("Cutting.add", "connection_lost")
        assert not refused.maybe_executed
    else:
        assert waiting[0].result() == 0
    assert waiting[1].result(DEADLINE_S) == 0
    assert pool.call("Cutting.total", ref).result(DEADLINE_S) in ({0, 4} if writes else {0})


def test_what_was_queued_behind_a_lost_writer_is_refused(ledger: Ledger) -> None:
    """On any connection of any client: the worker drops the writer, and the content is unchanged."""
    with ledger.start(UNDOING) as pool, atomr_mp.connect(run_dir=pool.run_dir) as other, ledger.gate("held") as gate:
        ref = pool.device(0).put(np.ones(1000))
        theirs = other.claim(ref.share())
        held = other.call("Undoing.hold_on_thread", gate.path)
        gate.wait()
        writer = pool.call("Undoing.fail_slowly", gate.path, ref)
        pool.device(0).put(np.ones(3))  # which the worker has heard of, and so of the writer
        reader = other.call("Undoing.total_on_thread", theirs)
        other.device(0).put(np.ones(3))
        cut_here(pool)
        assert isinstance(writer.exception(DEADLINE_S), errors.ConnectionLost)
        pool.device(0).put(np.ones(3))  # now the worker has heard of the loss
        gate.open()
        held.result(DEADLINE_S)
        refused = reader.exception(DEADLINE_S)
        assert isinstance(refused, errors.GpuRefUndefined)
        assert (refused.failed_method, refused.failed_with) == ("Undoing.fail_slowly", "connection_lost")
        assert other.call("Undoing.total_on_thread", theirs).result(DEADLINE_S) == 1000


def cut_here(pool: atomr_mp.Pool) -> None:
    """Shut this client's connection to device 0."""
    connection = local_client(pool)._blocking._links[0].connection
    assert connection is not None
    with socket.socket(fileno=os.dup(connection.fileno())) as duplicate:
        duplicate.shutdown(socket.SHUT_RDWR)


def unacknowledged(pool: atomr_mp.Pool) -> bool:
    """Return whether the client keeps releases that it might have to repeat."""
    return bool(local_client(pool)._session.releases(0, pool.devices[0].generation).to_repeat())


@pytest.mark.parametrize("how", HOW)
def test_arguments_of_lost_calls_come_back(ledger: Ledger, how: str) -> None:
    """Their memory is used again, even if the answer that returned it was not read."""
    array = np.ones(2**17)
    with ledger.start(CUTTING) as pool:
        assert pool.call("Cutting.total", array).result() == 2**17
        before = local_client(pool).memory._slabs._bytes
        for _ in range(2):
            with pytest.raises(errors.ConnectionLost):
                pool.call("Cutting.cut_and_total", how, array).result(DEADLINE_S)
        assert pool.call("Cutting.cut_once_and_total", how, array).result(DEADLINE_S) == 2**17
        assert pool.call("Cutting.total", array).result() == 2**17
        slabs = local_client(pool).memory._slabs

        def returned() -> bool:
            pool.call("Cutting.pid").result()
            return not slabs._kept and all(placed.returned for *_, placed in slabs._abandoned)

        assert settled(returned)
        assert slabs._bytes == before


@contextlib.contextmanager
def no_descriptors(pid: int) -> Iterator[None]:
    """Let a process accept nothing."""
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    taken = open_descriptors(pid)
    free = next(number for number in range(before[0]) if number not in taken)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (free, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


def unreachable(pool: atomr_mp.Pool) -> list[str]:
    """Return what `status` notes of clients that cannot reach the device."""
    with OperatorSession(pool.run_dir / "session.sock") as observer:
        return [note for note in observer.status().workers[0].notes if "cannot reach" in note]


def test_a_worker_without_descriptors_is_unreachable_for_a_while(ledger: Ledger) -> None:
    """New clients get an error long before the deadline; existing ones go on; then all is as before."""
    with ledger.start(CUTTING) as pool:
        pid = pool.call("Cutting.pid").result()
        with no_descriptors(pid):
            with atomr_mp.connect(run_dir=pool.run_dir, name="late") as late:
                with pytest.raises(errors.DeviceUnavailable, match="cannot be reached by this client") as refused:
                    late.call("Cutting.pid", device=0, deadline_s=10 * DEADLINE_S).result(DEADLINE_S)
                assert not refused.value.maybe_executed
                with pytest.raises(errors.DeviceUnavailable, match="cannot be reached by this client"):
                    late.call("Cutting.pid")
                assert any("client late cannot reach its worker" in note for note in unreachable(pool))
            assert settled(lambda: not unreachable(pool))
            assert pool.call("Cutting.pid").result() == pid
        with atomr_mp.connect(run_dir=pool.run_dir) as later:
            assert later.call("Cutting.pid").result(DEADLINE_S) == pid


def test_a_supervisor_that_tells_late_of_an_end_is_waited_for(ledger: Ledger) -> None:
    """Calls that may run twice are answered then."""
    with ledger.start(KEEPER, standby="hot") as pool:
        pool.call("Keeper.large_again", 3).result()
        (link,) = local_client(pool)._blocking._links
        with stopped(pool.supervisor_pid):
            os.kill(pool.devices[0].pid, signal.SIGKILL)
            reply = pool.call("Keeper.large_again", 3, device=0)
            assert settled(lambda: link.failures == MOST_FAILURES - 1 or reply.done)
        assert len(reply.result(DEADLINE_S)) == 3


def test_the_doctor_dials(ledger: Ledger) -> None:
    """A worker that ends connections at once is a finding; afterwards it is none."""
    with ledger.start(CUTTING) as pool:
        with no_descriptors(pool.call("Cutting.pid").result()):
            _, findings = examine(pool.run_dir, lasts_s=0)
            (found,) = [each for each in findings if each.state is State.UNACCOUNTED]
            assert "ends connections at once" in found.what
            assert found.pid == pool.devices[0].pid
            assert "ulimit -n" in found.remedy
        _, findings = examine(pool.run_dir, lasts_s=0)
        assert not [each for each in findings if each.state is State.UNACCOUNTED]
        assert pool.call("Cutting.pid").result() == pool.devices[0].pid


def test_a_device_that_could_not_be_reached_is_called_again(ledger: Ledger) -> None:
    """The attempts go on even if no caller waits."""
    with ledger.start(CUTTING) as pool:
        pid = pool.call("Cutting.pid").result()
        with atomr_mp.connect(run_dir=pool.run_dir) as late:
            with no_descriptors(pid), pytest.raises(errors.DeviceUnavailable):
                late.call("Cutting.pid").result(DEADLINE_S)

            assert unreachable(pool)

            def reached() -> bool:
                try:
                    return bool(late.call("Cutting.pid").result(DEADLINE_S) == pid)
                except errors.DeviceUnavailable:
                    return False

            assert settled(reached)
            assert settled(lambda: not unreachable(pool))


@pytest.mark.skipif(BACKEND != "host", reason="a GPU's memory has no descriptor")
def test_a_cut_keeps_no_slab_open(ledger: Ledger) -> None:
    """The actor looks at all descriptors of its worker: an open slab would be memory without an owner."""
    with ledger.start(CUTTING) as pool:
        ref = pool.device(0).put(np.ones(10))
        before = slabs_open(pool)
        with pytest.raises(errors.ConnectionLost):
            pool.call("Cutting.cut", "shut").result(DEADLINE_S)
        assert ref.numpy().sum() == 10
        assert slabs_open(pool) == before > 0


def slabs_open(pool: atomr_mp.Pool) -> int:
    """Return how many descriptors of slabs a worker has."""
    return sum("memfd:atomr-mp-slab" in each for each in open_descriptors(pool.devices[0].pid).values())
