"""Parts of gang calls, as the envelope sees them: calls of a world that each of its members gets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from atomr_mp import errors
from atomr_mp.protocol.messages import data
from atomr_mp_workers.requests.method import Method
from atomr_mp_workers.requests.request import Request, Run


class GangParts(ABC):
    """Takes in parts of gang calls. A part is checked first; it has come, or was refused, after that."""

    @abstractmethod
    def check(self, method: Method, session: int, gang: data.Gang | None) -> None:
        """Refuse a call that is not what the method's world needs.

        Args:
            method: The method, of a world's actor if `gang` is None.
            session: Number of the session.
            gang: The gang call that it is a part of, None if it is none.

        Raises:
            InvalidRequest: It is a part of a gang call and the method is of no world, or the other way round.
            CollectiveAborted: It is for another epoch.
        """

    @abstractmethod
    def gone(self, gang: data.Gang) -> None:
        """Refuse a part of a call of a world that this process is not in, or no longer.

        Raises:
            CollectiveAborted: It is in no such world.
        """

    @abstractmethod
    def came(self, request: Request) -> None:
        """Take in a part that was checked."""

    @abstractmethod
    def unwanted(self, request: Request) -> None:
        """Take in that the caller of a part that has not begun has cancelled it."""

    @abstractmethod
    def left(self, request: Request) -> None:
        """Take in that the connection of a part that has not begun has ended."""

    @abstractmethod
    def is_quiet(self, gang: data.Gang) -> bool:
        """Return whether nothing else runs on any member, so that a part may begin which has to run alone.

        Nothing else runs in this process from now on, until the part has ended.
        """

    @abstractmethod
    def refused(self, session: int, gang: data.Gang) -> None:
        """Take in that a part was answered on its arrival, so that the other members need not wait for it."""


class SharedRuns(ABC):
    """A method of a world whose requests run as one where all members have agreed on them: in batches, or in steps."""

    @abstractmethod
    def together(self, requests: Sequence[Request]) -> Run | None:
        """Begin requests that run as one or not at all, and return their run; None if they were answered instead."""


class NoWorlds(GangParts):
    """A process without a place in any world."""

    def check(self, method: Method, session: int, gang: data.Gang | None) -> None:  # noqa: ARG002 - as above
        """Refuse the call."""
        raise errors.InvalidRequest(f"{method.name} belongs to no world, so it is not called through one")

    def gone(self, gang: data.Gang) -> None:
        """Do nothing: there is no such request either."""

    def came(self, request: Request) -> None:
        """Do nothing: no part is let in."""

    def unwanted(self, request: Request) -> None:
        """Do nothing."""

    def left(self, request: Request) -> None:
        """Do nothing."""

    def is_quiet(self, gang: data.Gang) -> bool:  # noqa: ARG002 - as above
        """Return False: no part is let in."""
        return False

    def refused(self, session: int, gang: data.Gang) -> None:
        """Do nothing."""
