"""Tells which calls that an actor makes to its own device would wait for themselves, see `own_device`."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Final

from atomr_mp_workers.requests.off_loop.runner import ActorRunner
from atomr_mp_workers.requests.request import current_run


class OwnCalls:
    """The places of this process where code waits, and those that its calls need.

    Args:
        epoch: The pool's epoch.
        device: The device's index.
        generation: The incarnation of this process.
        runners: Runners of methods off the loop, by "Actor.method"; more may come.
    """

    def __init__(self, epoch: bytes, device: int, generation: int, runners: Mapping[str, ActorRunner]) -> None:
        self.epoch: Final = epoch
        self.device: Final = device
        self.generation: Final = generation
        self._runners: Final = runners
        self._pid: Final = os.getpid()

    def refusal(self, method: str) -> str:
        """Return why a call of a method could not begin before its caller ends; empty if it can. Any thread."""
        run = current_run()
        if os.getpid() != self._pid:  # a child that an actor has forked; its parent need not wait for it
            return ""
        name = "the actor" if run is None else run.method.name
        of_world = method in self._runners and self._runners[method].in_step
        if threading.current_thread() is threading.main_thread():
            if of_world:
                return (
                    f"{name} has the loop of device {self.device} and calls {method} of a world with it, which "
                    "cannot begin before the loop is free: mark the caller thread=True"
                )
            return (
                f"{name} has the loop of device {self.device} and calls {method} on the same device, which cannot "
                "begin before the loop is free: mark the caller thread=True, call another device, or call the actor's "
                "own method directly"
            )
        runner = None if run is None else self._runners.get(run.method.name)
        if runner is not None and runner.count == 1 and self._runners.get(method) is runner:
            if of_world:
                return (
                    f"{name} runs in a call of its world and calls {method} of the same world, which begins on no rank "
                    "before that call has ended: call the method directly, on all ranks"
                )
            return (
                f"{name} runs on the one thread of its actor and calls {method} on the same device, which needs that "
                "thread: give the actor more threads, call another device, or call the method directly"
            )
        return ""
