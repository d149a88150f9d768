"""The classes for Ray Data and Ray Serve, over a cluster of answers that are given beforehand."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from atomr_mp import errors
from atomr_mp.protocol.messages.devices import DeviceState
from tests.support import in_loop

pytest.importorskip("ray", reason="needs Ray: pip install 'atomr-mp[ray]'")
import atomr_mp.ray

POISON = errors.PoisonRequest("ends workers", fingerprint="f00d")


class Answers:
    """A cluster whose calls end with one answer, and whose devices are in the states that a test names."""

    def __init__(self, answer: Any = None, *states: DeviceState, idempotent: bool = True) -> None:
        self._answer, self._idempotent = answer, idempotent
        self._devices = [SimpleNamespace(state=state) for state in states]
        self.called: list[tuple[Any, ...]] = []
        self.options: list[dict[str, Any]] = []

    def wait_nodes(self, _within_s: float) -> bool:
        """Return at once."""
        return True

    def method_info(self, _method: str) -> SimpleNamespace:
        """Return whether the method may run twice."""
        return SimpleNamespace(idempotent=self._idempotent)

    def pool(self, _node: int | None, _within_s: float) -> SimpleNamespace:
        """Return the pool, if there is one."""
        if not self._devices:
            raise errors.PoolUnreachable("no pool")
        return self.pools[0]

    @property
    def pools(self) -> list[SimpleNamespace]:
        """A pool with all devices."""
        return [SimpleNamespace(devices=self._devices)]

    def call(self, method: str, *args: Any, **options: Any) -> Coroutine[Any, Any, Any]:
        """Make a call, which ends with the answer."""
        self.called.append((method, *args))
        self.options.append(options)

        async def answered() -> Any:
            await asyncio.sleep(0)
            if isinstance(self._answer, errors.AtomrError):
                raise self._answer
            return self._answer

        return answered()


def mapped(cluster: Answers, batch: dict[str, Any], columns: list[str], **options: Any) -> dict[str, Any]:
    """Return what Ray Data gets of a batch."""
    caller: Any = atomr_mp.ray.Caller
    found: dict[str, Any] = in_loop(lambda: caller(cluster, "A.m", columns, "y", **options)(batch))
    return found


def test_a_batch_is_one_call_whose_results_are_a_column() -> None:
    """Arrays are passed as they are, read-only ones too; strings as a list."""
    numbers = np.arange(3.0)
    numbers.flags.writeable = False
    names = np.array(["a", "b", "c"], dtype=object)
    cluster = Answers(np.arange(3))
    done = mapped(cluster, {"x": numbers, "name": names, "other": numbers}, ["x", "name"])
    ((method, x, name),) = cluster.called
    assert (method, name) == ("A.m", ["a", "b", "c"])
    assert x is numbers
    assert list(done) == ["x", "name", "other", "y"]
    assert done["y"].tolist() == [0, 1, 2]


def test_a_deadly_batch_ends_the_job_or_has_none_and_its_fingerprint() -> None:
    """The caller chooses. A good batch has the same columns."""
    batch = {"x": np.arange(2.0)}
    with pytest.raises(errors.PoisonRequest):
        mapped(Answers(POISON), batch, ["x"])
    bad = mapped(Answers(POISON), batch, ["x"], on_poison="null")
    assert bad["y"].tolist() == [None, None]
    assert bad["poison_fingerprint"].tolist() == ["f00d", "f00d"]
    good = mapped(Answers([1, 2]), batch, ["x"], on_poison="null")
    assert (good["y"].tolist(), good["poison_fingerprint"].tolist()) == ([1, 2], [None, None])


@pytest.mark.parametrize(
    ("cluster", "columns", "options", "match"),
    [
        (Answers(idempotent=False), ["x"], {}, "not idempotent"),
        (Answers(), ["z"], {}, "no column 'z'; there are: x"),
        (Answers(), [], {}, "columns must be a list"),
        (Answers(), "x", {}, "columns must be a list"),
        (Answers(), ["x"], {"on_poison": "skip"}, "on_poison must be"),
        (Answers([1, 2, 3]), ["x"], {}, "one value for each of 2 rows"),
        (Answers(5), ["x"], {}, "one value for each of 2 rows"),
    ],
)
def test_what_cannot_be_mapped_is_refused(cluster: Answers, columns: Any, options: dict[str, Any], match: str) -> None:
    """The error says why."""
    with pytest.raises(errors.InvalidRequest, match=match):
        mapped(cluster, {"x": np.arange(2.0)}, columns, **options)


@pytest.mark.parametrize(
    ("states", "healthy"),
    [
        ([], False),
        ([DeviceState.READY], True),
        ([DeviceState.REBUILDING, DeviceState.STARTING], True),
        ([DeviceState.TRIPPED, DeviceState.LOST], True),
        ([DeviceState.TRIPPED, DeviceState.STOPPED, DeviceState.QUARANTINED], False),
    ],
)
def test_a_replica_is_healthy_while_a_device_takes_calls_or_comes_back(
    states: list[DeviceState], *, healthy: bool
) -> None:
    """Serve replaces replicas that are not; a new one would find the same workers coming back."""
    replica: Any = atomr_mp.ray.Replica
    made = replica(Answers(None, *states))
    if healthy:
        in_loop(made.check_health)
    else:
        with pytest.raises(errors.PoolUnreachable):
            in_loop(made.check_health)


def test_a_requests_deadline_goes_before_the_replicas() -> None:
    """An error is an outcome too, with its facts."""
    cluster = Answers(errors.WorkerLost("killed", device=1, maybe_executed=True))
    replica: Any = atomr_mp.ray.Replica
    made = replica(cluster, deadline_s=20.0)
    for deadline_s in (None, 0.5):
        found = in_loop(functools.partial(made, "A.m", 1, deadline_s=deadline_s))
        with pytest.raises(errors.WorkerLost) as lost:
            atomr_mp.ray.value_of(found)
        assert (lost.value.device, lost.value.maybe_executed) == (1, True)
    assert [each["deadline_s"] for each in cluster.options] == [20.0, 0.5]
