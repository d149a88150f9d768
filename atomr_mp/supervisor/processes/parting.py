"""The reason of a process's end, by the supervisor's decision or the process's own word."""

from __future__ import annotations

from atomr_mp import errors


class Parting:
    """Facts of a process's end before it comes. Each fact is written by one method."""

    def __init__(self) -> None:
        self._wish = ""
        self._drained = False
        self._late = ""
        self._fault: errors.AtomrError | None = None
        self._word = ""
        self._hung_ns = 0
        self._retires = False

    @property
    def wish(self) -> str:
        """Who asked for the end, in a word: "restart", "recycle"; empty if it was not asked for."""
        return self._wish

    @property
    def drained(self) -> bool:
        """Whether the process was ordered to finish its requests."""
        return self._drained

    @property
    def late(self) -> str:
        """A text that says that its drain took too long, so that it was killed; empty if not."""
        return self._late

    @property
    def fault(self) -> errors.AtomrError | None:
        """The error of its end, from the process itself or by the supervisor's decision."""
        return self._fault

    @property
    def word(self) -> str:
        """The fault in a word, for programs: its code, or the word of who has found it; empty without one."""
        return self._word or ("" if self._fault is None else self._fault.code)

    @property
    def is_deadly(self) -> bool:
        """Whether the supervisor ends the process by SIGKILL, which then is not the cause of its end."""
        return bool(self._late) or (self._fault is not None and not self._retires)

    @property
    def hung_ns(self) -> int:
        """When it was found to hang, CLOCK_MONOTONIC; 0 if it was not. Later ends of requests do not count."""
        return self._hung_ns

    @property
    def retires(self) -> bool:
        """Whether it finishes its requests because it has damaged its own board."""
        return self._retires

    @property
    def is_wanted(self) -> bool:
        """Whether somebody asked for the end, so that it does not count."""
        return (self._drained or bool(self._wish)) and not self._retires

    def wished(self, wish: str) -> None:
        """Somebody asks for the end."""
        self._wish = wish

    def told_to_finish(self) -> None:
        """The process is ordered to finish its requests."""
        self._drained = True

    def took_too_long(self, limit_s: float) -> None:
        """Its drain has passed its limit."""
        self._late = f" after it had not finished within {limit_s:g} s (drain_timeout_s)"

    def failed(self, fault: errors.AtomrError, word: str = "") -> None:
        """The process says why it ends, or has broken a rule; a later fault replaces an earlier one.

        Args:
            fault: Why.
            word: The same in a word, if the fault's code does not tell it.
        """
        self._fault, self._word = fault, word

    def retired(self, fault: errors.AtomrError) -> None:
        """Its board cannot be believed: it may finish its requests, and its end counts."""
        self._wish, self._fault, self._retires = "board", fault, True

    def hung(self, fault: errors.WorkerHung, now_ns: int) -> None:
        """A request on it makes no progress."""
        self._fault, self._hung_ns = fault, now_ns
