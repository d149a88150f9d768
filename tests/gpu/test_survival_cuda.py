"""What a dead worker leaves on a GPU, and what its successor has of it."""

from __future__ import annotations

import os
import signal
from typing import Any, Final

import pytest

from atomr_mp.process import nvml
from tests.gpu.test_resident_cuda import wait_standby
from tests.support import PROBE, Ledger, wait_generation

pytestmark = pytest.mark.gpu

HOT: Final[dict[str, Any]] = {"backend": "cuda", "standby": "hot", "max_restarts": 1000, "backoff_initial_s": 0.05}


def test_the_next_worker_gets_as_much_memory_as_the_dead_one_had(ledger: Ledger) -> None:
    """Half of what there is does not fit twice: it waits for what its predecessor had, and does not fail."""
    usage = next(iter(nvml.usage().values()))
    nbytes = int((usage.memory_bytes - usage.used_bytes) * 0.6)
    with ledger.start(PROBE, gpus=1, memory_bytes=usage.memory_bytes, **HOT) as pool:
        for generation in range(1, 4):
            wait_standby(pool, generation + 1)
            held = pool.device(0).empty(nbytes, "uint8")
            assert held.generation == generation
            os.kill(pool.devices[0].pid, signal.SIGKILL)
            wait_generation(pool, generation + 1)
