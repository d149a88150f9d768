"""Branches and loops of a program while it is recorded: the objects of `Program.if_` and `Program.while_`."""

from __future__ import annotations

from types import TracebackType
from typing import Final, Self

from atomr_mp import errors
from atomr_mp.libraries.recording import ProgramArray, RecordedBlock, Recording
from atomr_mp.protocol.libraries.blocks import Kind
from atomr_mp.protocol.refs import Operand


class If:
    """A branch: the steps that are recorded within its `with` are done if the condition is true.

    Args:
        recording: The program.
        condition: The condition.
    """

    _kind: Kind = "if"

    def __init__(self, recording: Recording, condition: Operand, most: int = 1) -> None:
        recording.check_condition(condition, f"{self._kind}_")
        self._recording: Final = recording
        self._condition: Final = condition
        self._most: Final = most
        self._block: RecordedBlock | None = None
        recording.announced += 1

    def __enter__(self) -> Self:
        if self._block is not None:
            raise errors.InvalidRequest(f"this {self._kind}_ has its body already; make another")
        self._block = self._recording.enter(self._kind, self._condition, self._most)
        self._recording.announced -= 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        assert self._block is not None
        self._recording.leave(self._block, failed=kind is not None)


class While(If):
    """A loop: the steps that are recorded within its `with` are a round."""

    _kind: Kind = "while"

    @property
    def rounds(self) -> ProgramArray:
        """How many rounds it has done, as int64 without dimensions; for steps behind it, and to be returned."""
        return self._result(0)

    @property
    def reached_most(self) -> ProgramArray:
        """Whether the bound has ended it, since its condition is still true; bool without dimensions, as `rounds`."""
        return self._result(1)

    def _result(self, number: int) -> ProgramArray:
        if self._block is None:
            raise errors.InvalidRequest("the while_ has not begun: its block is the body")
        return self._block.results[number]
