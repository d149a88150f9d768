"""Two workers on one GPU: what they share, and that a fault of one is none of the other's."""

from __future__ import annotations

import os
import signal
from typing import Any, Final

import numpy as np
import pytest

from atomr_mp import errors
from atomr_mp.operator.session import OperatorSession
from atomr_mp.protocol.messages.devices import DeviceState
from tests.gpu.test_resident_cuda import BLOB_BYTES, GRAPHED, RESTARTING, expected
from tests.support import ACTORS, Events, Ledger, wait_generation

pytestmark = pytest.mark.gpu

FAULTY: Final = f"{ACTORS}/faulty.py:Faulty"
TWO: Final[dict[str, Any]] = {"gpus": 1, "workers_per_gpu": 2, **RESTARTING}


def test_resident_memory_is_there_once_for_all_workers_of_a_gpu(ledger: Ledger) -> None:
    """One has filled it, the other has mapped it; it stays when either ends."""
    with ledger.start(GRAPHED, **TWO) as pool, OperatorSession(pool.run_dir / "session.sock") as observer:
        for round_ in range(1, 4):
            (blob,) = observer.residents().residents
            assert (blob.gpu, blob.device, blob.nbytes) == (0, 0, 3 * BLOB_BYTES)
            assert {user.pid for user in blob.users} == {device.pid for device in pool.devices}
            assert [pool.call("Graphed.replay", 2.0, device=device).result()[1] for device in (0, 1)] == [
                expected(2.0)
            ] * 2
            device = pool.devices[round_ % 2]
            os.kill(device.pid, signal.SIGKILL)
            wait_generation(pool, device.generation + 1, device.index)
    assert ledger.runs("fills") == ["1"]


@pytest.mark.parametrize("how", ["illegal", "trap"])
def test_a_context_that_is_lost_is_one_worker_s(ledger: Ledger, how: str) -> None:
    """The other keeps its generation and its memory, and is lent nothing of the dead."""
    with ledger.start(FAULTY, **TWO) as pool:
        other, events = pool.devices[1], Events(pool)
        mine, theirs = (pool.device(index).put(np.arange(1000.0, dtype="float32")) for index in (1, 0))
        assert pool.call("Faulty.total", mine, device=0).result() == pytest.approx(499500.0)
        assert pool.call("Faulty.total", theirs, device=1).result() == pytest.approx(499500.0)
        with pytest.raises(errors.ContextPoisoned):
            pool.call("Faulty.fault", how, device=0).result()
        events.wait(lambda device: device.index == 0 and device.state is not DeviceState.READY)
        wait_generation(pool, 2, 0)
        assert pool.devices[1] == other
        assert pool.call("Faulty.total", mine, device=1).result() == pytest.approx(499500.0)
        assert pool.call("Faulty.total", mine, device=0).result() == pytest.approx(499500.0)
        with pytest.raises(errors.GpuRefStale):
            pool.call("Faulty.total", theirs, device=1)
