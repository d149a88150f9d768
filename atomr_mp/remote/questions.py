"""A remote client's questions to the supervisor, and the answers to them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from atomr_mp import errors
from atomr_mp.protocol.messages import remote, session


class Asking(Protocol):
    """The session, as its questions see it. Hold its lock."""

    def ask_now(self, question: remote.Question) -> None:
        """Send a question, if there is a connection."""

    def check_lost(self) -> None:
        """Raise `PoolLost` if the session has ended."""


class Questions:
    """Open questions, until they are answered.

    Args:
        session: The session.
        changed: Returns the session's condition; a forked child makes a new one.
    """

    def __init__(self, session: Asking, changed: Callable[[], threading.Condition]) -> None:
        self._session = session
        self._changed = changed
        self._open: dict[int, tuple[remote.Question, Any]] = {}
        """The questions, each with its answer once that has come."""

    def ask(self, question: remote.Question, timeout_s: float) -> Any:
        """Ask the supervisor a question, and return its answer. Blocks; thread-safe.

        Raises:
            AtomrError: The supervisor refused it.
            TimeoutError: No answer came in time.
            PoolLost: The session has ended.
        """
        until = time.monotonic() + timeout_s
        changed = self._changed()
        with changed:
            self._session.check_lost()
            if question.id in self._open:
                raise errors.ProtocolError(f"question {question.id} is being asked")
            self._open[question.id] = question, None
            try:
                self._session.ask_now(question)
                while self._open[question.id][1] is None:
                    self._session.check_lost()
                    left_s = until - time.monotonic()
                    if left_s <= 0:
                        raise TimeoutError(f"the supervisor did not answer within {timeout_s:g} s")
                    changed.wait(left_s)
                answer = self._open[question.id][1]
            finally:
                del self._open[question.id]
        if isinstance(answer, session.Answer) and answer.error is not None:
            raise answer.error.error()
        return answer

    def answered(self, number: int, answer: Any) -> bool:
        """Take an answer, with the lock held; False if nobody waits for it."""
        if number not in self._open:
            return False
        self._open[number] = self._open[number][0], answer
        return True

    def repeat(self) -> None:
        """Ask unanswered questions again, after a cut, with the lock held."""
        for question, answer in self._open.values():
            if answer is None:
                self._session.ask_now(question)
