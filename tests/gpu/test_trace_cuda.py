"""Traces of a pool with a GPU: the GPU's own times are in them, and in replies meanwhile."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np
import pytest

import atomr_mp
from atomr_mp.operator.session import OperatorSession
from atomr_mp.operator.trace.tracer import PoolTracer
from atomr_mp.process.files.rundir import SESSION_SOCKET
from tests.support import DEADLINE_S, Ledger, settled

pytestmark = pytest.mark.gpu

DOUBT_US = 1000
"""How well the GPU's clock is known at least: a request begins a little behind the first of its work, too."""


def _gpu_s(pool: atomr_mp.Pool) -> float | None:
    reply = pool.call("Probe.note_on_thread", "a")
    reply.result()
    return reply.gpu_s


@pytest.mark.parametrize("completion", ["adaptive", "host_function", "polled", "synchronous"])
def test_products_have_the_gpu_s_time(ledger: Ledger, tmp_path: Path, completion: str) -> None:
    """It is within the request's own, and larger products take longer."""
    stop, file = threading.Event(), tmp_path / "trace.json"
    with ledger.start(completion=completion) as pool:
        device = pool.device(0)
        small, large = (device.put(np.ones((n, n), "float32")) for n in (256, 4096))
        for each in (small, large):
            device.blas.gemm(each, each).result()
        with OperatorSession(pool.run_dir / SESSION_SOCKET) as observer, file.open("wb", buffering=0) as out:
            tracer = PoolTracer(observer, 60.0, stop.is_set)
            runs = threading.Thread(target=lambda: tracer.run(out))
            runs.start()
            try:
                took = []
                for each in (small, large):
                    reply = device.blas.gemm(each, each)
                    reply.result()
                    took.append(reply.gpu_s or 0.0)
                thread = pool.call("Probe.note_on_thread", "a")
                thread.result()
            finally:
                stop.set()
                runs.join(DEADLINE_S)
        assert settled(lambda: _gpu_s(pool) is None), "the worker hears of the trace's end"
        last = device.blas.gemm(small, small)
        last.result()
        (work,) = (each for each in pool.status().devices[0].work if each.method == "blas.gemm")
    assert 0 < took[0] < took[1] < 0.1
    assert work.requests == 2
    assert work.mean_s == pytest.approx(sum(took) / 2, rel=1e-6)
    assert work.gflops == pytest.approx(2 * (256**3 + 4096**3) / sum(took) / 1e9, rel=1e-3)
    events = json.loads(file.read_bytes())["traceEvents"]
    rows = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    products = [event for event in events if event["ph"] == "X" and event["name"] == "blas.gemm"]
    on_gpu = [event for event in products if rows[event["tid"]].startswith("GPU")]
    assert [event["dur"] for event in on_gpu] == pytest.approx([1e6 * each for each in took], abs=1)
    for event in on_gpu:
        (request,) = (
            each
            for each in products
            if each["pid"] == event["pid"]
            and each["tid"] != event["tid"]
            and each["args"]["request"] == event["args"]["request"]
        )
        assert request["ts"] - DOUBT_US <= event["ts"]
        assert event["ts"] + event["dur"] <= request["ts"] + request["dur"] + DOUBT_US
        assert request["args"]["gflops"] > 0
