"""The Open Inference Protocol over workers whose CUDA context is poisoned, and Triton's metrics of the GPUs."""

from __future__ import annotations

import json
import statistics
import time
from typing import Final

import pytest

from atomr_mp import errors
from atomr_mp.process.gpus import nvml
from tests.contract.serve.test_serve import metric
from tests.crash.services.test_serve_grpc_killed import InferenceLoad
from tests.crash.services.test_serve_killed import HOT, pool_of
from tests.inferring import ADD_SUB, INFERRED, bearer, message, pair, stub_of
from tests.serving import Server
from tests.support import ACTORS, DEADLINE_S, Ledger, settled, standby_of, wait_generation

pytestmark = pytest.mark.gpu

FAULTY: Final = f"{ACTORS}/faulty.py:Faulty"
POISONS: Final = 12
MORE: Final = ("--actor", FAULTY, "--set", "max_restarts=1000", "--grpc-port", "0")

REQUEST: Final = json.dumps(
    {"inputs": [{"name": name, "shape": [2], "datatype": "INT32", "data": [1, 2]} for name in ("a", "b")]}
).encode()


@pytest.mark.parametrize("loaded", [False, True])
def test_contexts_are_poisoned_and_no_client_sees_an_error(
    ledger: Ledger, capsys: pytest.CaptureFixture[str], *, loaded: bool
) -> None:
    """By calls of HTTP and gRPC and by a stream; the time is from the poison's error to the next answer of each."""
    with Server(ledger, *HOT, *MORE, actor=INFERRED) as server, pool_of(ledger) as pool, stub_of(server) as stub:
        metadata, load, took = tuple(bearer(server).items()), InferenceLoad(server), list[tuple[float, float]]()

        def http() -> bytes:
            return server.ask("POST", f"/v2/models/{ADD_SUB}/infer", REQUEST).body

        def grpc() -> int:
            return len(stub.ModelInfer(message(ADD_SUB, pair()), metadata=metadata, timeout=DEADLINE_S).outputs)

        def poison(generation: int) -> tuple[float, float]:
            """Poison the worker, and return the milliseconds to the next answers over HTTP and gRPC."""
            assert settled(lambda: standby_of(pool).state == "ready")
            assert (b'"data":[2,4]' in http(), grpc()) == (True, 2)
            error = pool.call("Faulty.fault_and_wait", "illegal", generation).exception(DEADLINE_S)
            assert isinstance(error, errors.ContextPoisoned)
            began = time.monotonic()
            answer = http()
            answered = time.monotonic()
            assert grpc() == 2
            ended = time.monotonic()
            assert b'"data":[2,4]' in answer
            wait_generation(pool, generation + 1)
            return (answered - began) * 1e3, (ended - answered) * 1e3

        if loaded:
            with load:
                for generation in range(1, POISONS + 1):
                    took.append(poison(generation))
                    load.more()
            assert not load.wrong
        else:
            took = [poison(generation) for generation in range(1, POISONS + 1)]
    first = sorted(each for each, _ in took)
    told = {"p50": statistics.median(first), "max": first[-1], "grpc_behind": statistics.median(it for _, it in took)}
    with capsys.disabled():
        print(json.dumps({"poison to the next answer over HTTP, ms": told, "loaded": loaded}))


def test_metrics_tell_the_gpus_of_the_pool(ledger: Ledger) -> None:
    """By Triton's names: memory as NVML has it, and how busy it is."""
    with Server(ledger, actor=INFERRED) as server:
        uuid, usage = next(iter(nvml.usage().items()))
        labels = f'{{gpu_uuid="{uuid}"}}'
        assert metric(server, f"nv_gpu_memory_total_bytes{labels}") == usage.memory_bytes
        assert 0 < metric(server, f"nv_gpu_memory_used_bytes{labels}") <= usage.memory_bytes
        assert 0 <= metric(server, f"nv_gpu_utilization{labels}") <= 1
