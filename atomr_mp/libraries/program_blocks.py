"""Branches and loops of a program while it is recorded: what `Program.if_`, `else_` and `while_` return."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Final, Self

from atomr_mp import errors
from atomr_mp.libraries.recording import ProgramArray, RecordedBlock, Recording
from atomr_mp.protocol.libraries.blocks import Kind
from atomr_mp.protocol.refs import Operand


class Body(ABC):
    """Steps that are recorded within a `with`.

    Args:
        recording: The program.
        method: The name of the method that has made it, for messages.
    """

    def __init__(self, recording: Recording, method: str) -> None:
        self._recording: Final = recording
        self._method: Final = method
        self._block: RecordedBlock | None = None
        recording.announced += 1

    @abstractmethod
    def _enter(self) -> RecordedBlock:
        """Begin it in the recording."""

    def __enter__(self) -> Self:
        if self._block is not None:
            raise errors.InvalidRequest(f"this {self._method} has its body already; make another")
        self._block = self._enter()
        self._recording.announced -= 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        assert self._block is not None
        self._recording.leave(self._block, failed=kind is not None)


class If(Body):
    """A branch: the steps that are recorded within its `with` are done if the condition is true.

    Args:
        recording: The program.
        condition: The condition.
    """

    _kind: Kind = "if"

    def __init__(self, recording: Recording, condition: Operand, most: int = 1) -> None:
        recording.check_condition(condition, f"{self._kind}_")
        self._condition: Final = condition
        self._most: Final = most
        super().__init__(recording, f"{self._kind}_")

    def _enter(self) -> RecordedBlock:
        return self._recording.enter(self._kind, self._condition, self._most)


class Else(Body):
    """The second body of a branch: the steps that are recorded within its `with` are done if the condition is false.

    Args:
        recording: The program, in which the branch has just ended.
    """

    def __init__(self, recording: Recording) -> None:
        self._branch: Final = recording.check_second()
        super().__init__(recording, "else_")

    def _enter(self) -> RecordedBlock:
        return self._recording.enter_second(self._branch)


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
