from __future__ import annotations

import os

import msgspec
import pytest

from atomr_mp.protocol.messages.devices import WorldInfo, WorldState
from atomr_mp.protocol.messages.operators import (
    BatchStatus,
    Figures,
    QuarantinedRequest,
    Status,
    WorkerStatus,
    WorldMemberProgress,
    WorldProgress,
)
from atomr_mp.protocol.messages.suspects import RequestKey
from atomr_mp.serve.values.results import encode_json
from atomr_mp.serve.watch.shared_sample import SAMPLE_BYTES, SharedSample
from atomr_mp.serve.watch.snapshot import StatusSample, snapshot
from tests.pure.command.test_top import histogram, worker

IDLE = Figures(0, 0, 0, 0, 0, 0, 0, 0, histogram([]), [])


def status_of(*workers: WorkerStatus) -> Status:
    """Return a pool's status."""
    return Status(1, "p", "host", "1", 7, 0.0, 0, False, 1, 0, list(workers))


def test_a_sample_has_the_rates_of_the_last_interval() -> None:
    """And none of JSON's strangers."""
    busy = msgspec.structs.replace(IDLE, answered=90, failed=10, latencies=histogram([2**20] * 100))
    sizes = [0] * 11
    before = msgspec.structs.replace(worker(0, IDLE), batches=[BatchStatus("A.m", 10, 100, 1.0, 0.5, sizes)])
    after = msgspec.structs.replace(worker(0, busy), batches=[BatchStatus("A.m", 20, 300, 2.0, 0.5, sizes)])
    shown = snapshot(StatusSample(1.0, status_of(before)), StatusSample(3.0, status_of(after)))
    (device,) = shown["devices"]
    assert (device["rate"], device["errors"]) == (50.0, 5.0)
    assert 0.5 < device["p50_ms"] <= device["p99_ms"] < 2.1
    assert device["batches"] == [{"method": "A.m", "rate": 5.0, "items": 20.0, "wait_ms": 5.0}]
    assert encode_json(shown)
    first = snapshot(None, StatusSample(1.0, status_of(before)))
    assert first["devices"][0]["p50_ms"] is None


def test_a_refused_request_is_named() -> None:
    """With its method, its fingerprint as the command takes it, and how many workers it has ended."""
    key = RequestKey("A.deadly", b"\x0f" * 16)
    status = msgspec.structs.replace(status_of(), quarantined=[QuarantinedRequest(key, 5.0, 2, [])])
    shown = snapshot(None, StatusSample(1.0, status))
    assert shown["refused"] == [{"method": "A.deadly", "fingerprint": "0f" * 16, "since": 5.0, "ends": 2}]
    assert shown["refused_in_all"] == 1


def test_a_world_is_shown_with_its_epoch_and_who_waits() -> None:
    """And why it is not ready."""
    status = msgspec.structs.replace(
        status_of(),
        worlds=[
            WorldInfo(0, "tp", [1, 0], ["A"], WorldState.READY, 3, [1, 1]),
            WorldInfo(1, "pp", [2], ["B"], WorldState.WAITING, 1, [], "rank 0 (device 2) is tripped"),
        ],
        progress=[
            WorldProgress(
                7,
                [WorldMemberProgress(7, 6, "waits in barrier"), WorldMemberProgress(7, 6, "runs call 7")],
                "rank 0 waits",
            ),
            WorldProgress(),
        ],
    )
    first, second = snapshot(None, StatusSample(1.0, status))["worlds"]
    assert (first["name"], first["state"], first["epoch"], first["calls"]) == ("tp", "ready", 3, 7)
    assert (first["note"], first["members"]) == ("rank 0 waits", ["waits in barrier", "runs call 7"])
    assert (second["note"], second["members"]) == ("rank 0 (device 2) is tripped", [])


def test_one_at_a_time_writes_samples_and_all_read_the_latest() -> None:
    """One torn by its writer's end is no sample, and what was seen by one that watches no more is not shown."""
    descriptor = os.memfd_create("look")
    first, second = SharedSample(descriptor), SharedSample(descriptor)
    assert first.latest() is None
    assert first.acquire()
    assert not first.acquire()
    first.publish(b"a sample")
    first.publish_history(b"for the next")
    found = second.latest()
    assert found is not None
    number, sample = found
    assert sample == b"a sample"
    assert second.latest(number) is None
    first.publish(b"a longer sample")
    assert second.latest(number) == (number + 1, b"a longer sample")
    with pytest.raises(ValueError, match="at most"):
        first.publish(bytes(SAMPLE_BYTES))
    first.release()
    assert (second.latest(), second.history()) == (None, b"for the next")
    assert second.acquire()
    os.pwrite(descriptor, b"torn", 20)
    assert (second.latest(), second.history()) == (None, b"")
    second.release()
