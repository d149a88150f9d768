"""The client, as its memory uses it. Types only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from atomr_mp import errors
from atomr_mp.client.memory.leases import Releases
from atomr_mp.protocol.messages import session
from atomr_mp.protocol.messages.devices import DeviceInfo


class MemoryCall(Protocol):
    """A call under way."""

    def result(self) -> Any:
        """Wait for the answer and return the result."""


class MemoryClient(Protocol):
    """A client, as its memory sees it."""

    @property
    def epoch(self) -> bytes:
        """The life of the pool that it belongs to."""

    @property
    def forked(self) -> bool:
        """Whether this process was forked from the client's."""

    @property
    def lost(self) -> errors.PoolLost | None:
        """Why the pool is lost, None if it is not."""

    @property
    def devices(self) -> Sequence[DeviceInfo]:
        """The devices, as the supervisor last reported them."""

    def read_session(self) -> None:
        """Take in the supervisor's messages."""

    def give_back(self, releases: Releases, *, freed: bool = False) -> None:
        """Send due releases to an incarnation, if possible."""

    def submit(
        self,
        method: str,
        arguments: object,
        *,
        device: int | None,
        deadline_s: float,
        blocking: bool = False,
        wait: bool | None = None,
    ) -> MemoryCall:
        """Send a request, once there is room for it."""

    def ask(
        self, question: Callable[[int], session.FromClient], timeout_s: float, descriptor: int | None = None
    ) -> tuple[session.Answer | session.SlabOpened, int | None]:
        """Ask a question in the session; return the answer, and the descriptor that came with it."""

    def tell(self, message: session.FromClient) -> None:
        """Send a message without an answer in the session."""
