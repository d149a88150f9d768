"""Remote clients: the same interface by tcp://, keys, rights, and the limits of strangers and offenders."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import zmq

import atomr_mp
from atomr_mp import errors
from atomr_mp.libraries.program import Program
from atomr_mp.process.files.events import read_events
from atomr_mp.remote import keys
from tests import remote as served
from tests.support import DEADLINE_S, Ledger, pretend_told, settled


@pytest.fixture
def serving(ledger: Ledger) -> Iterator[served.Served]:
    """A pool with one device that admits alice."""
    found = served.serve(ledger)
    with found.pool:
        yield found


def test_calls_are_made_as_to_a_local_pool(serving: served.Served, ledger: Ledger) -> None:
    """Threads and event loops get results, errors, callbacks, deadlines, cancelling and maps."""
    with serving.connect() as pool:
        pool.wait_ready()
        assert pool.name == serving.pool.name
        value = [1, 2.5, "three", b"four", None, {"five": [True]}]
        assert pool.call("Probe.echo", value).result() == value
        assert pool.actor("Probe").echo(value=7).result() == 7
        with pytest.raises(errors.InvalidRequest, match=r"did you mean Probe\.echo"):
            pool.call("Probe.ecko", 1)
        with pytest.raises(errors.InvalidRequest):
            pool.call("Probe.echo").result()
        with pytest.raises(errors.ActorFailed, match="on purpose") as failed:
            pool.call("Probe.fail", "exception").result()
        assert "OnPurposeError" in failed.value.traceback_text  # alice operates
        array = np.arange(2000, dtype="float32").reshape(40, 50)
        np.testing.assert_array_equal(pool.call("Probe.echo", array).result(), array)

        async def together() -> list[int]:
            return await asyncio.gather(*[pool.call("Probe.echo", number) for number in range(200)])

        assert asyncio.run(together()) == list(range(200))
        assert list(pool.map("Probe.echo", range(300))) == list(range(300))

        async def mapped() -> list[int]:
            return [each async for each in pool.amap("Probe.echo", range(50))]

        assert asyncio.run(mapped()) == list(range(50))
        with concurrent.futures.ThreadPoolExecutor(4) as threads:
            assert list(threads.map(lambda number: pool.call("Probe.echo", number).result(), range(100))) == [
                *range(100)
            ]
        called = threading.Event()
        pool.call("Probe.echo", 1).add_done_callback(lambda _: called.set())
        assert called.wait(DEADLINE_S)
        with ledger.gate("held") as gate:
            held = pool.call("Probe.hold", gate.path)
            waits = pool.call("Probe.echo", 1)
            late = pool.call("Probe.echo", 1, deadline_s=0.05)
            gate.wait()
            with pytest.raises(errors.DeadlineExceeded):
                late.result()
            waits.cancel()
            with pytest.raises(TimeoutError):
                held.result(timeout_s=0.01)
            gate.open()
            assert held.result() == 1
            assert isinstance(waits.exception(), errors.Cancelled | None)  # it may have come too late
        assert pool.status().devices[0].index == 0


def test_refs_are_handles_of_what_the_pool_has(serving: served.Served) -> None:
    """Made, passed on, sliced, read, written and released; what needs shared memory is `Unsupported`."""
    with serving.connect() as pool, serving.connect() as other:
        pool.wait_ready()
        device = pool.device()
        content = np.arange(12, dtype="float64").reshape(3, 4)
        ref = device.put(content)
        np.testing.assert_array_equal(ref.numpy(), content)
        np.testing.assert_array_equal(ref[1:, ::2].T.numpy(), content[1:, ::2].T)
        product = device.blas.gemm(ref, ref.T).result()
        np.testing.assert_allclose(product.numpy(), content @ content.T)
        zeros = device.zeros((3, 4), "float64")
        zeros.fill(2.0)
        ref.copy_to(zeros)
        np.testing.assert_array_equal(zeros.numpy(), content)
        claimed = other.claim(ref.share())
        ref.free()
        np.testing.assert_array_equal(claimed.numpy(), content)
        with pytest.raises(errors.GpuRefReleased):
            ref.numpy()
        with pytest.raises(errors.Unsupported, match="numpy\\(\\) copies"):
            zeros.view()
        with pytest.raises(errors.Unsupported):
            pool.host_array((2, 2))
        with pytest.raises(errors.GpuRefReleased):
            other.call("Probe.echo", zeros)
    assert settled(lambda: serving.pool.status().devices[0].leases == 0, DEADLINE_S)


def test_programs_go_by_their_digest(serving: served.Served) -> None:
    """A worker that lacks one gets it, even with large inputs."""
    with serving.connect() as pool:
        pool.wait_ready()
        device = pool.device()
        for n in (8, 100_000):
            with device.program() as p:
                x = p.input("x", (n,), "float64")
                p.returns(p.elementwise.add(x, x))

            async def together(p: Program = p, n: int = n) -> list[object]:
                pretend_told(device, p)
                return [each.numpy()[-1] for each in await asyncio.gather(*[p.run(x=np.ones(n)) for _ in range(4)])]

            assert asyncio.run(together()) == [2.0] * 4
            known = pretend_told(device, p)._incarnation
            assert known is not None
            for turn in range(4):
                assert (p.run(x=np.full(n, turn + 0.5)).result().numpy() == 2 * turn + 1).all()
            assert all(each.known for each in known.told.values())
        serving.pool.restart(0)
        assert settled(lambda: pool.devices[0].generation == 2)
        assert (p.run(x=np.ones(n)).result().numpy() == 2).all()


def test_a_lease_of_another_client_is_none(serving: served.Served) -> None:
    """A client that forges a ref's wire form is refused by the worker, and its session goes on."""
    with serving.connect() as pool, serving.connect() as thief:
        pool.wait_ready()
        ref = pool.device().put(np.ones(4))
        forged = thief.device().put(np.ones(4))
        forged._wire = ref.to_wire()
        with pytest.raises(errors.GpuRefReleased, match="has no lease"):
            thief.call("Probe.echo", forged).result()
        assert thief.call("Probe.echo", 1).result() == 1


def test_only_admitted_keys_connect(serving: served.Served, tmp_path: Path) -> None:
    """A stranger's key is refused, and so is a server with another key; a revoked key's sessions end at once."""
    server = keys.read_server(serving.keys_dir).public
    pair, other = keys.new_pair(), keys.new_pair()
    stranger = tmp_path / "stranger.key"
    keys.write_new(stranger, keys.ClientKeys(name="x", public=pair.public, secret=pair.secret, server=server))
    with pytest.raises(errors.NotAuthorized, match="does not admit"):
        atomr_mp.connect(serving.address, keys=stranger)
    admitted = keys.read_client(served.key_file(serving.keys_dir, "alice"))
    deceived = tmp_path / "deceived.key"
    keys.write_new(
        deceived, keys.ClientKeys(name="alice", public=admitted.public, secret=admitted.secret, server=other.public)
    )
    with pytest.raises(errors.PoolUnreachable, match="this server's key"):
        atomr_mp.connect(serving.address, keys=deceived)
    served.admit(serving.keys_dir, "bob")
    _run_keys(serving, "admit", "carol", pair.public)  # which has the relay read bob's too
    with serving.connect("bob") as bob, serving.connect() as alice:
        assert bob.call("Probe.echo", 1).result() == 1
        with pytest.raises(errors.NotAuthorized, match="may not give orders"):
            bob.restart(0)
        assert bob.status().remote is not None
        with pytest.raises(errors.ActorFailed) as failed:
            bob.call("Probe.fail", "exception").result()
        assert not failed.value.traceback_text
        _run_keys(serving, "revoke", "bob")
        with pytest.raises(errors.SessionLost, match="revoked"):
            bob._client.wait_until(lambda: False, DEADLINE_S)
        with pytest.raises(errors.NotAuthorized):
            serving.connect("bob")
        assert alice.call("Probe.echo", 1).result() == 1
    events = [str(each["text"]) for each in read_events(serving.pool.run_dir / "events.jsonl")]
    assert any("connects from 127.0.0.1" in text for text in events)
    assert any("whose key is not admitted, the last from 127.0.0.1" in text for text in events)
    assert any("revoked" in text for text in events)


def test_a_key_that_is_revoked_in_the_file_alone_is_revoked(serving: served.Served) -> None:
    """By a command that knows of no running pool: the relay looks at the file itself."""
    served.admit(serving.keys_dir, "bob")
    _run_keys(serving, "revoke", _admit_one_more(serving))  # which has the relay read the keys
    with serving.connect("bob") as bob, serving.connect() as alice:
        assert bob.call("Probe.echo", 1).result() == 1
        keys.change_admitted(serving.keys_dir, lambda before: before.revoking("bob")[0])
        with pytest.raises(errors.SessionLost, match="revoked"):
            bob._client.wait_until(lambda: False, DEADLINE_S)
        assert alice.call("Probe.echo", 1).result() == 1


def test_a_small_key_copies_large_arrays(serving: served.Served) -> None:
    """With a small window both ends go on as soon as there is room in it."""
    served.admit(serving.keys_dir, "bob", max_bytes=2**20)
    _run_keys(serving, "revoke", _admit_one_more(serving))  # which has the relay read the keys
    content = np.arange(2**20, dtype="float64")
    with serving.connect("bob") as bob, concurrent.futures.ThreadPoolExecutor(1) as threads:
        ref = threads.submit(bob.device().put, content).result(DEADLINE_S)
        np.testing.assert_array_equal(ref.numpy(), content)


def test_a_key_has_as_many_sessions_as_it_may(serving: served.Served) -> None:
    """A further session is refused, and a closed one makes room."""
    served.admit(serving.keys_dir, "bob", sessions=1)
    _run_keys(serving, "revoke", _admit_one_more(serving))
    with serving.connect("bob"), pytest.raises(errors.Overloaded, match="1 sessions of 1"):
        serving.connect("bob")

    def again() -> bool:
        with contextlib.suppress(errors.Overloaded), serving.connect("bob"):
            return True
        return False

    assert settled(again, DEADLINE_S)


def test_without_keys_only_this_machine_is_served(ledger: Ledger) -> None:
    """`insecure` allows it on a loopback address; neither side takes anything else."""
    with pytest.raises(errors.ConfigurationError, match="loopback"):
        ledger.start(listen="tcp://0.0.0.0:0", insecure=True)
    with pytest.raises(errors.ConfigurationError, match=r"server\.key"):
        ledger.start(listen=served.LISTEN, keys_dir=str(ledger.path / "none"))
    with pytest.raises(errors.ConfigurationError, match="loopback"):
        atomr_mp.connect("tcp://192.0.2.1:5570", insecure=True)
    with pytest.raises(errors.ConfigurationError, match="key file"):
        atomr_mp.connect("tcp://192.0.2.1:5570")
    with (
        ledger.start(listen=served.LISTEN, insecure=True) as pool,
        atomr_mp.connect(served.listening(pool), insecure=True) as far,
    ):
        assert far.call("Probe.echo", 1).result() == 1


def test_a_relay_that_admits_everybody_does_not_listen(tmp_path: Path) -> None:
    """The check that each start makes fails where libzmq fails open: without a handler and without a domain."""
    from atomr_mp.relay.probe import check_refuses

    pair = keys.new_pair()
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.setsockopt(zmq.CURVE_SERVER, 1)
        router.setsockopt(zmq.CURVE_SECRETKEY, pair.secret.encode())
        router.bind(f"ipc://{tmp_path}/open")
        with pytest.raises(errors.NotAuthorized, match="does not listen"):
            check_refuses(f"ipc://{tmp_path}/open", pair.public)


def test_only_remote_clients_load_libzmq() -> None:
    """An application that has nothing to do with other machines does not have it in its process."""
    code = "import sys, atomr_mp.pool, atomr_mp.startup.start; sys.exit('zmq' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_forked_child_has_to_connect_anew(serving: served.Served) -> None:
    """Otherwise libzmq would wait for ever in the child."""
    with serving.connect() as pool:
        assert pool.call("Probe.echo", 1).result() == 1
        child = os.fork()
        if child == 0:
            status = 1
            with contextlib.suppress(BaseException):
                try:
                    pool.call("Probe.echo", 1)
                except errors.PoolLost:
                    status = 0
            os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert pool.call("Probe.echo", 2).result() == 2


def _run_keys(serving: served.Served, *arguments: str) -> None:
    run_dir, keys_dir = str(serving.pool.run_dir), str(serving.keys_dir)
    subprocess.run(
        [sys.executable, "-m", "atomr_mp", "keys", *arguments, "--run-dir", run_dir, "--keys-dir", keys_dir],
        check=True,
        stdout=subprocess.DEVNULL,
    )


def _admit_one_more(serving: served.Served) -> str:
    served.admit(serving.keys_dir, "nobody")
    return "nobody"


def test_calls_beyond_the_window_wait_for_room(ledger: Ledger) -> None:
    """They wait by default in an event loop, in a thread on request, and keep their order."""
    with served.serve(ledger, window_requests=2).pool as pool:
        found = served.Served(pool, served.listening(pool), ledger.path / "keys")
        with found.connect() as far, ledger.gate("held") as gate:
            far.wait_ready()
            held = far.call("Probe.hold", gate.path)
            gate.wait()
            full = far.call("Probe.echo", 1)
            with pytest.raises(errors.Overloaded, match="2 unanswered requests"):
                far.call("Probe.echo", 2)
            with pytest.raises(errors.DeadlineExceeded):
                far.call("Probe.echo", 2, wait=True, deadline_s=0.05)

            async def many() -> list[int]:
                calls = [far.call("Probe.echo", number) for number in range(10)]
                gate.open()
                return await asyncio.gather(*calls)

            assert asyncio.run(many()) == list(range(10))
            assert (held.result(), full.result()) == (1, 1)


def test_arguments_and_results_of_any_size(ledger: Ledger) -> None:
    """Large ones are copied through memory, also more than a message inside the pool may have."""
    found = served.serve(ledger, window_bytes=64 * 2**20)
    served.admit(found.keys_dir, "bob", max_bytes=2**24)
    _run_keys(found, "revoke", _admit_one_more(found))  # which has the relay read the keys
    with found.pool, found.connect("bob") as little, found.connect() as pool:
        with pytest.raises(errors.Overloaded, match="max-bytes"):
            little.call("Probe.echo", np.zeros(20 * 2**20, "uint8"))
        assert little.call("Probe.echo", np.zeros(2**20, "uint8")).result().size == 2**20
        pool.wait_ready()
        rng = np.random.default_rng(5)
        large = rng.normal(size=(2500, 1000))  # 19 MiB
        device = pool.device()
        ref = device.put(large)
        np.testing.assert_array_equal(ref.numpy(), large)
        np.testing.assert_array_equal(ref[::2, 5:].numpy(), large[::2, 5:])
        some = rng.normal(size=40_000)
        replies = [pool.call("Probe.echo", [number, some + number, "x" * 200_000]) for number in range(6)]
        small = [pool.call("Probe.echo", number) for number in range(50)]
        assert [reply.result() for reply in small] == list(range(50))
        for number, reply in enumerate(replies):
            back, array, text = reply.result()
            assert (back, text) == (number, "x" * 200_000)
            np.testing.assert_array_equal(array, some + number)
            array += 1  # it is the caller's own
        mixed = pool.call("Probe.echo", {"ref": ref, "array": some})
        answer = mixed.result()
        np.testing.assert_array_equal(answer["array"], some)

        async def together() -> float:
            results = await asyncio.gather(*[pool.call("Probe.echo", some * number) for number in range(5)])
            return float(sum(result.sum() for result in results))

        np.testing.assert_allclose(asyncio.run(together()), some.sum() * 10)
        pool.device().put(np.zeros(2**20)).free()
