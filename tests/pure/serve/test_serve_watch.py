from __future__ import annotations

import itertools
import os

import msgspec
import pytest

from atomr_mp.protocol.messages.devices import DeviceState
from atomr_mp.protocol.messages.operators import BatchStatus, Figures, Status, WorkerStatus
from atomr_mp.serve.values.results import encode_json
from atomr_mp.serve.watch.shared_look import LOOK_BYTES, SharedLook
from atomr_mp.serve.watch.snapshot import Look, news, snapshot
from tests.pure.command.test_top import histogram, worker

IDLE = Figures(0, 0, 0, 0, 0, 0, 0, 0, histogram([]), [])


def status_of(*workers: WorkerStatus) -> Status:
    """Return a pool's status."""
    return Status(1, "p", "host", "1", 7, 0.0, 0, False, 1, 0, list(workers))


def test_a_look_has_the_rates_of_the_last_interval() -> None:
    """And none of JSON's strangers."""
    busy = msgspec.structs.replace(IDLE, answered=90, failed=10, latencies=histogram([2**20] * 100))
    sizes = [0] * 11
    before = msgspec.structs.replace(worker(0, IDLE), batches=[BatchStatus("A.m", 10, 100, 1.0, 0.5, sizes)])
    after = msgspec.structs.replace(worker(0, busy), batches=[BatchStatus("A.m", 20, 300, 2.0, 0.5, sizes)])
    shown = snapshot(Look(1.0, status_of(before)), Look(3.0, status_of(after)))
    (device,) = shown["devices"]
    assert (device["rate"], device["errors"]) == (50.0, 5.0)
    assert 0.5 < device["p50_ms"] <= device["p99_ms"] < 2.1
    assert device["batches"] == [{"method": "A.m", "rate": 5.0, "items": 20.0, "wait_ms": 5.0}]
    assert encode_json(shown)
    first = snapshot(None, Look(1.0, status_of(before)))
    assert first["devices"][0]["p50_ms"] is None


def test_news_are_ends_and_new_generations() -> None:
    """Each once; nothing is news where nothing has changed."""
    ready = msgspec.structs.replace(worker(0, IDLE), last_fault="", last_fault_at=0.0)
    lost_info = msgspec.structs.replace(ready.device, state=DeviceState.LOST)
    lost = msgspec.structs.replace(ready, device=lost_info, last_fault="killed by SIGKILL", last_fault_at=5.0)
    back_info = msgspec.structs.replace(ready.device, generation=ready.device.generation + 1, state=DeviceState.READY)
    back = msgspec.structs.replace(lost, device=back_info, started_at=6.0)
    out_info = msgspec.structs.replace(back_info, state=DeviceState.TRIPPED, reason="it ended too often")
    out = msgspec.structs.replace(back, device=out_info)
    steps = [ready, lost, lost, back, back, out, out]
    told = [news(status_of(old), status_of(new)) for old, new in itertools.pairwise(steps)]
    kinds = [[each["kind"] for each in step] for step in told]
    assert kinds == [["fault"], [], ["ready"], [], ["out"], []]
    assert told[0][0] == {"device": 0, "at": 5.0, "kind": "fault", "text": "killed by SIGKILL"}
    assert news(status_of(), status_of(lost)) == []


def test_one_at_a_time_writes_looks_and_all_read_the_latest() -> None:
    """One torn by its writer's end is no look, and what was seen by one that watches no more is not shown."""
    descriptor = os.memfd_create("look")
    first, second = SharedLook(descriptor), SharedLook(descriptor)
    assert first.latest() is None
    assert first.acquire()
    assert not first.acquire()
    first.publish(b"a look", b"basis")
    found = second.latest()
    assert found is not None
    number, look = found
    assert look == b"a look"
    assert second.latest(number) is None
    first.publish(b"a longer look", b"for the next")
    assert second.latest(number) == (number + 1, b"a longer look")
    with pytest.raises(ValueError, match="at most"):
        first.publish(bytes(LOOK_BYTES), b"")
    first.release()
    assert (second.latest(), second.basis()) == (None, b"for the next")
    assert second.acquire()
    os.pwrite(descriptor, b"torn", 20)
    assert (second.latest(), second.basis()) == (None, b"")
    second.release()
