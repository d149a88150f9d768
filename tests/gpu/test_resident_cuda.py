"""Resident memory on a GPU: every process reads it and none writes it, whichever is poisoned or killed."""

from __future__ import annotations

import gc
import os
import signal
from typing import Any, Final

import numpy as np
import pytest

import atomr_mp
from atomr_mp import errors
from atomr_mp.operator.session import OperatorSession
from tests.gpu.on_device import device, synchronize
from tests.support import ACTORS, Ledger, settled, wait_generation, wait_until

pytestmark = pytest.mark.gpu

GRAPHED: Final = f"{ACTORS}/graphed.py:Graphed"
RESTARTING: Final[dict[str, Any]] = {"backend": "cuda", "max_restarts": 1000, "backoff_initial_s": 0.05}
ELEMENTS: Final = 2**20
"""As the actor has them."""
WEIGHTS: Final = np.arange(ELEMENTS) % 7
BLOB_BYTES: Final = 2**21


def expected(x: float) -> float:
    """Return the expected result of the graph."""
    return float((x * WEIGHTS + 3).sum())


def wait_standby(pool: atomr_mp.Pool, generation: int) -> None:
    """Wait until this client is connected to the standby of a generation."""

    def stands() -> bool:
        standby = pool._client.devices[0].standby
        return standby is not None and standby.generation >= generation

    wait_until(pool, stands)


@pytest.mark.parametrize("how", ["kill", "write"])
def test_a_graph_over_it_replays_after_a_promotion(ledger: Ledger, how: str) -> None:
    """Each process has captured its own; a kernel that writes the weights has poisoned its context and no other."""
    with ledger.start(GRAPHED, standby="hot", **RESTARTING) as pool:
        for generation in range(1, 4):
            wait_generation(pool, generation)
            wait_standby(pool, generation + 1)
            pid, found = pool.call("Graphed.replay", 2.0).result()
            assert found == expected(2.0)
            if how == "kill":
                os.kill(int(pid), signal.SIGKILL)
            else:
                lost = pool.call("Graphed.write").exception()
                assert isinstance(lost, errors.ContextPoisoned)
        wait_generation(pool, 4)
        assert pool.call("Graphed.replay", 0.5).result()[1] == expected(0.5)
    assert ledger.runs("fills") == ["1"]


def test_it_is_a_tensor_and_a_result_like_any_array(ledger: Ledger) -> None:
    """A tensor over the same memory; a result that is a copy, for no caller may have the memory itself."""
    pytest.importorskip("torch")
    with ledger.start(GRAPHED, **RESTARTING) as pool:
        assert pool.call("Graphed.as_tensor").result() == [True, float(WEIGHTS.sum())]
        result = pool.call("Graphed.result").result()
        assert result.numpy().tolist() == WEIGHTS[:10].tolist()


def test_it_takes_memory_once_and_gives_it_back(ledger: Ledger) -> None:
    """Once it was freed and the last process with a mapping has ended."""
    with ledger.start(GRAPHED, **RESTARTING) as pool, OperatorSession(pool.run_dir / "session.sock") as observer:
        (blob,) = observer.residents().residents
        assert (blob.device, blob.nbytes, [user.pid for user in blob.users]) == (
            0,
            3 * BLOB_BYTES,
            [pool.devices[0].pid],
        )
        observer.free_resident("model", force=True)
        assert [blob.state for blob in observer.residents().residents] == ["freed"]
        pool.restart(0)
        wait_generation(pool, 2)
        assert settled(lambda: [blob.state for blob in observer.residents().residents] == ["sealed"])
        assert pool.call("Graphed.replay", 1.0).result()[1] == expected(1.0)
    assert ledger.runs("fills") == ["1", "2"]


# --- the memory by itself ------------------------------------------------------------------------------------------


def test_what_is_sealed_is_opened_by_its_descriptor() -> None:
    """With the same content, at another address; and stays while anybody has it."""
    import cupy

    made = device().make_resident(2 * BLOB_BYTES)
    whole = made.bytes(None, 0, 2 * BLOB_BYTES)
    whole[...] = cupy.arange(2 * BLOB_BYTES) % 256
    descriptor = made.seal()
    assert not os.get_inheritable(descriptor)
    assert whole[:300].get().tolist() == (np.arange(300) % 256).tolist()
    opened = device().open_resident(2 * BLOB_BYTES, descriptor)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    del made, whole
    gc.collect()
    assert np.array_equal(opened.content(255, 3), [255, 0, 1])


def test_memory_comes_back_when_nobody_has_it() -> None:
    """Neither mapped nor by its descriptor; other processes take memory meanwhile, less than half of this."""
    import cupy

    synchronize()
    before = cupy.cuda.runtime.memGetInfo()[0]
    nbytes = before // 8 // 2**21 * 2**21
    made = device().make_resident(nbytes)
    descriptor = made.seal()
    del made
    gc.collect()
    assert before - cupy.cuda.runtime.memGetInfo()[0] >= nbytes // 2
    os.close(descriptor)
    assert settled(lambda: before - cupy.cuda.runtime.memGetInfo()[0] < nbytes // 2)


def test_what_cannot_be_had_is_typed() -> None:
    """More memory than there is, a descriptor of something else, a wrong size; the context goes on."""
    with pytest.raises(errors.OutOfMemory) as raised:
        device().make_resident(2**45)
    assert raised.value.requested_bytes == 2**45
    with pytest.raises(errors.LibraryError):
        device().open_resident(BLOB_BYTES, os.open("/dev/null", os.O_RDONLY))
    made = device().make_resident(BLOB_BYTES)
    with pytest.raises(errors.LibraryError):
        device().open_resident(4 * BLOB_BYTES, made.seal())
    device().check()
