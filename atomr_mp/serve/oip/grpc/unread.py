"""Counts the bytes of gRPC's answers from their making until they are sent, and bounds them as HTTP's are."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final

from atomr_mp.serve.http.limits import Limits
from atomr_mp.serve.problems import Problem, retry_after


class UnsentAnswers:
    """The answers of one front end, or of one stream in it.

    Args:
        most: Most bytes that may wait when a request comes.
        check_whole: Refuses a request by the front end's answers, where these are a stream's.
        take_whole: Counts an answer there, too.
    """

    def __init__(
        self, most: int, check_whole: Callable[[], object] = bool, take_whole: Callable[[int], object] = bool
    ) -> None:
        self._most: Final = most
        self._check_whole: Final = check_whole
        self._take_whole: Final = take_whole
        self.held = 0

    @classmethod
    def of_front_end(cls, limits: Limits) -> UnsentAnswers:
        """Return those of a front end."""
        return cls(limits.unread_bytes)

    def of_stream(self, limits: Limits) -> UnsentAnswers:
        """Return those of a stream, which count here, too."""
        return UnsentAnswers(limits.unread_connection_bytes, self.check, self.take)

    def check(self) -> None:
        """Refuse a request while too much waits for clients that do not read.

        Raises:
            Problem: 429.
        """
        if self.held > self._most:
            told = f"{self.held} bytes of answers wait for clients that do not read them; read, or try again"
            raise Problem(429, "overloaded", told, headers=(retry_after(0),))
        self._check_whole()

    def take(self, nbytes: int) -> None:
        """Count the bytes of an answer; a negative number takes them back."""
        self.held += nbytes
        self._take_whole(nbytes)

    @contextlib.contextmanager
    def sending(self, nbytes: int) -> Iterator[None]:
        """Count an answer in the `with` block."""
        self.take(nbytes)
        try:
            yield
        finally:
            self.take(-nbytes)

    def until_over(self, context: Any, nbytes: int) -> None:
        """Count an answer until its call is over, which it is once its client has read it, or has left."""
        self.take(nbytes)
        context.add_done_callback(lambda _context: self.take(-nbytes))
