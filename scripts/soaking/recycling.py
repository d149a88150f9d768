"""The soak without kills: the pool itself replaces each worker at an age, and no caller may notice."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

import psutil

import atomr_mp
from atomr_mp import errors
from atomr_mp.protocol.allocation import SLAB_BYTES
from atomr_mp.protocol.messages.devices import DeviceState
from soaking import everything, words
from soaking.census import Census
from soaking.clients import Client
from soaking.disturbances import Disturbance
from soaking.soak import CLIENT, SETTLE_S, Moment, Soak

RECYCLE: Final = "recycle"

OURS: Final = Census(descriptors=2, threads=0, slabs=1, own_bytes=0)
"""What a worker holds for an unwritten slab: its memfd, and that of the mapping."""


class Recycling(Soak):
    """One run; the arguments are those of `Soak`, and `age_s`, the age at which a worker is replaced.

    In every other round clients hold no buffers for a while, as often: then workers are replaced in time. In the rounds
    between a worker is replaced when it was due for a minute, and takes along what clients hold in it.
    """

    def __init__(self, *arguments: Any, age_s: float, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._age_s = age_s
        self._used: list[int] = []
        """The generations whose workers have been used in every way since they were started."""
        self._held: list[atomr_mp.GpuRef] = []
        """A buffer in each worker while processes are compared."""
        self.recycles: Final[list[list[int]]] = []
        """How many of each device's workers were replaced, round by round."""

    @property
    def kinds(self) -> dict[str, float]:
        """Disturbances and their mean intervals."""
        return {CLIENT: 2.5}

    def settings(self) -> dict[str, Any]:
        """Return the pool's settings."""
        return {**super().settings(), "max_age_s": self._age_s}

    def use(self, number: int, until_s: float) -> words.Use:
        """Return the clients' orders for a round."""
        lull_every_s = 0.0 if number % 2 else self._age_s
        return words.Use(until_s, None, self.shape.refs, planned=True, lull_every_s=lull_every_s)

    def disturb(self, moment: Moment, what: Disturbance) -> None:
        """Carry out a disturbance."""
        self.kill_client(moment, what)

    @property
    def expected(self) -> dict[str, int]:
        """Figures of a device's memory that are not 0 when no client but us holds anything."""
        return {"slabs": 1, "slab_bytes": SLAB_BYTES} if self._held else super().expected

    def take_census(self, pool: atomr_mp.Pool, clients: list[Client]) -> dict[str, Census]:
        """Return the holdings of processes while no worker is being replaced and all have been used in every way.

        A worker in which we hold a buffer is not replaced for a minute, so that on a slow machine too it is compared
        before its successor has come. The slab of that buffer does not count.
        """
        while True:
            pool.wait_ready()
            try:
                self._held = [pool.device(number).empty((1,), "uint8") for number in range(self.shape.devices)]
                generations = [ref.generation for ref in self._held]
                if generations != self._used:
                    self._use_once(pool)
                    self._used = generations
                found = super().take_census(pool, clients)
            except (errors.GpuRefStale, errors.WorkerLost, psutil.NoSuchProcess):  # one was replaced just now
                continue
            finally:
                for ref in self._held:
                    ref.free()  # at once: nothing else is sent from here for long, and a worker in use is not replaced
                self._held = []
            if generations == [device.generation * (device.state is DeviceState.READY) for device in pool.devices]:
                return {name: each if not name.startswith("worker") else _without(each) for name, each in found.items()}

    def after_round(self, pool: atomr_mp.Pool, number: int) -> None:
        """Check that each device's worker was replaced, and none has ended otherwise."""
        before = [sum(each) for each in zip(*self.recycles, strict=True)] or [0] * self.shape.devices
        until_s = time.monotonic() + self._age_s + SETTLE_S
        while True:
            ends = [{each.cause: each.count for each in worker.figures.ends} for worker in pool.figures().workers]
            recycles = [causes.get(RECYCLE, 0) - earlier for causes, earlier in zip(ends, before, strict=True)]
            if all(recycles) or time.monotonic() > until_s:
                break
            time.sleep(0.25)  # as often as the pool looks
        self.recycles.append(recycles)
        self.counts[RECYCLE] += sum(recycles)
        for device, (count, causes) in enumerate(zip(recycles, ends, strict=True)):
            if not count:
                self.wrong(f"no worker of device {device} was replaced in round {number + 1}")
            if causes.keys() - {RECYCLE}:
                self.wrong(f"workers of device {device} have ended otherwise than planned: {causes}")

    def _use_once(self, pool: atomr_mp.Pool) -> None:
        """Use everything once in each worker, so that young workers can be compared with old ones."""
        what = "refs" if self.shape.refs else "values"
        command = [sys.executable, "-m", everything.__name__, str(pool.run_dir), what]
        # Not here: the examination ignores what it leaves behind in a process.
        done = subprocess.run(command, cwd=Path(__file__).parent.parent, capture_output=True, text=True, check=False)
        if done.returncode:
            self.wrong(f"everything was used once, and failed: {done.stderr}")
        for device in range(self.shape.devices):
            pool.call("Hoard.drop", device=device).result()  # gives back what the C library keeps
        self.expect_alone(pool)


def _without(found: Census) -> Census:
    """Return a worker's holdings without the slab of our buffer."""
    return found._replace(descriptors=found.descriptors - OURS.descriptors, slabs=found.slabs - OURS.slabs)
