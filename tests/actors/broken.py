"""An actor that breaks the runtime around it: functions of the worker raise as often as it asks."""

from __future__ import annotations

import os
from typing import Any, Final

from atomr_mp_workers import Actor, method
from atomr_mp_workers.loaded_method import LoadedMethod
from atomr_mp_workers.requests import contents, operands
from atomr_mp_workers.requests.answers import Answers
from atomr_mp_workers.requests.envelope import Envelope

STEPS: Final[dict[str, tuple[Any, str]]] = {
    "find": (Envelope, "_overloaded"),
    "decode": (LoadedMethod, "arguments"),
    "convert": (LoadedMethod, "converted"),
    "borrow": (operands, "borrow"),
    "settle": (contents, "settle"),
    "answer": (Answers, "_give"),
}


class Broken(Actor):
    """Breaks steps of a request's way."""

    @method(idempotent=True)
    def pid(self) -> int:
        """Return the worker's pid."""
        return os.getpid()

    @method
    def touch(self, value: Any) -> int:
        """Take anything."""
        return value is not None

    @method(writes=("array",))
    def write(self, array: Any) -> None:
        """Write an array."""
        array += 1

    @method
    def break_step(self, step: str, times: int, method: str) -> None:
        """Have a step of the next requests of a method raise."""
        owner, name = STEPS[step]
        original = getattr(owner, name)
        left = [times]

        def broken(*args: Any) -> Any:
            about = [getattr(each, "method", each) for each in args]
            if left[0] and any(getattr(each, "name", "") == f"Broken.{method}" for each in about):
                left[0] -= 1
                if not left[0]:
                    setattr(owner, name, original)
                raise IndexError("list index out of range")
            return original(*args)

        setattr(owner, name, broken)
