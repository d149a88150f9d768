"""GPU memory between a dead worker and its successor."""

from __future__ import annotations

import json
import os
import signal
from typing import Any, Final

import pytest

import atomr_mp
from atomr_mp.process.gpus import nvml
from tests.contract.command.test_cli import cli
from tests.gpu.test_resident_cuda import GRAPHED, wait_standby
from tests.support import PROBE, Ledger, wait_generation

pytestmark = pytest.mark.gpu

HOT: Final[dict[str, Any]] = {"backend": "cuda", "standby": "hot", "max_restarts": 1000, "backoff_initial_s": 0.05}


def test_the_next_worker_gets_as_much_memory_as_the_dead_one_had(ledger: Ledger) -> None:
    """Half of the memory does not fit twice: the allocation waits for the predecessor's, and does not fail."""
    usage = next(iter(nvml.usage().values()))
    nbytes = int((usage.memory_bytes - usage.used_bytes) * 0.6)
    with ledger.start(PROBE, gpus=1, memory_bytes=usage.memory_bytes, **HOT) as pool:
        for generation in range(1, 4):
            wait_standby(pool, generation + 1)
            held = pool.device(0).empty(nbytes, "uint8")
            assert held.generation == generation
            os.kill(pool.devices[0].pid, signal.SIGKILL)
            wait_generation(pool, generation + 1)


def examined(pool: atomr_mp.Pool) -> list[dict[str, Any]]:
    """Return what the doctor has found, after a look at whether it has found anything unaccounted for."""
    done = cli("doctor", "--leaks", "--json", "--run-dir", pool.run_dir)
    found = json.loads(done.stdout)
    unaccounted = [each for each in found["findings"] if each["state"] == "unaccounted"]
    assert (done.returncode, unaccounted) == (0, []), done.stderr
    assert found["supervisor"] == "answers"
    return list(found["findings"])


def test_the_doctor_accounts_for_all_that_a_pool_has_on_its_gpus(ledger: Ledger) -> None:
    """A worker and its standby, both with resident memory, and buffers that a client has open; before and after kills.

    A predecessor that is being taken down is accounted for too: the look just after a kill may find one.
    """
    with ledger.start(GRAPHED, PROBE, **HOT) as pool:
        for generation in range(1, 4):
            wait_generation(pool, generation)
            held = pool.device(0).zeros(2**20)
            view = held.view()
            assert view.shape == (2**20,)
            findings = examined(pool)
            del view, held
            wait_standby(pool, generation + 1)
            roles = {each["what"].split(" of ")[0] for each in findings if each["kind"] == "process"}
            assert "the worker" in roles
            assert any(each["kind"] == "gpu" for each in findings)
            assert pool.call("Graphed.replay", 2.0).result()
            os.kill(pool.devices[0].pid, signal.SIGKILL)
            examined(pool)
