"""The request that runs programs of a world that a session has made. Its parts run on the world's thread.

All ranks meet before the first step. What one of them refuses, none begins: its peers meet its refusal. They meet once
more behind the last step. A rank on which a step has failed meets its peers at their next collective, or there, with a
refusal: so the run fails on all ranks, and what it writes is undefined on all. No rank waits for ever, and the epoch
goes on. Only a process that ends behind the last meeting leaves a run that is whole on the others and lost.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from atomr_mp import errors
from atomr_mp.protocol import values
from atomr_mp.protocol.libraries import program
from atomr_mp.protocol.libraries.program import RunProgram
from atomr_mp_workers.libraries.actor_libraries import ThreadLibraries
from atomr_mp_workers.libraries.base import LibraryContext
from atomr_mp_workers.libraries.kernels.rights import admitted_program
from atomr_mp_workers.libraries.program.definitions import is_in_parts, weigh
from atomr_mp_workers.memory.arrays import DeviceArray
from atomr_mp_workers.requests.method import Method, Resolve
from atomr_mp_workers.requests.request import current_request
from atomr_mp_workers.worlds.exchange.ref_collectives import RefusedPart

if TYPE_CHECKING:
    from atomr_mp_workers.worlds.exchange.world import OwnWorld

NAME_BYTES: Final = 7
"""So many bytes of a program's digest name it among the ranks."""


class WorldProgramMethod(Method):
    """Runs programs on one rank.

    Args:
        context: The context for libraries.
        name: Its name.
        world: The world's number.
        view: The world.
    """

    thread = True
    apart = True

    def __init__(self, context: LibraryContext, name: str, world: int, view: OwnWorld) -> None:
        super().__init__(name, self._run)
        self.world = world
        self.refused = RefusedPart
        self.weigh, self.recall, self.in_parts = weigh, admitted_program, is_in_parts
        self._view: Final = view
        self._steps: Final = MeetingSteps(view)
        self._context: Final = dataclasses.replace(context, world=self._steps)
        self._decoder: Final = values.Decoder[RunProgram](RunProgram, RunProgram.hook(), writable=False)
        self._libraries: ThreadLibraries | None = None
        """Those of the world's thread, once it has run a program."""

    def arguments(self, body: bytes, frames: Sequence[memoryview], resolve: Resolve) -> tuple[RunProgram]:
        """Decode a part, and check it."""
        request = self._decoder.decode(body, frames, resolve)
        if not request.program or request.digest not in {b"", program.digest(request.program)}:
            raise errors.InvalidRequest("a program of a world is sent as a whole, with its own digest or without one")
        request.check()
        return (request,)

    def written(self, arguments: tuple[Any, ...]) -> list[DeviceArray]:
        """Return the arrays that steps write."""
        request: RunProgram = arguments[0]
        return request.written()

    def read(self, arguments: tuple[Any, ...], _arrays: Sequence[DeviceArray]) -> list[DeviceArray]:
        """Return the arrays whose content steps need."""
        request: RunProgram = arguments[0]
        return request.read()

    def triangle_of(self, arguments: tuple[Any, ...], array: DeviceArray) -> str | None:
        """Return "" for an array that steps write as a whole; else a name that stands for what they write of it."""
        request: RunProgram = arguments[0]
        return request.triangle_of(array)

    def written_before(self, arguments: tuple[Any, ...], array: DeviceArray) -> Sequence[DeviceArray]:
        """Return the arrays that steps have written before one reads this one."""
        request: RunProgram = arguments[0]
        return request.written_before(array)

    def _run(self, part: RunProgram | RefusedPart) -> Any:
        """Run a program together with the other ranks; return what it returns. The world's thread.

        Raises:
            AtomrError: It is refused here, a step has failed, or another rank does not go on.
        """
        steps = self._steps
        steps.met = self._view.steps
        try:
            libraries = self._begin(part)
        except BaseException as error:
            request = current_request()
            if request is not None and not isinstance(error, errors.CollectiveAborted):
                request.kept_out = True
            raise
        assert isinstance(part, RunProgram)
        try:
            result = libraries.run("program", part)
        except (errors.WorldMismatch, errors.CollectiveAborted):
            raise
        except BaseException:
            self._refuse()
            raise
        self._view.meet_for_program(_named(part))
        return result

    def _begin(self, part: RunProgram | RefusedPart) -> ThreadLibraries:
        """Prepare a program, and meet the other ranks."""
        try:
            if isinstance(part, RefusedPart):
                raise part.error
            libraries = self._libraries
            if libraries is None:
                stream = self._context.device.thread_stream()
                assert stream is not None
                libraries = self._libraries = ThreadLibraries(self._context, stream)
            libraries.prepare("program", part)
        except BaseException:
            self._refuse()
            raise
        self._view.meet_for_program(_named(part))
        self._steps.met = self._view.steps
        return libraries

    def _refuse(self) -> None:
        """Have the others end, if they still wait for this rank: they have not met it in what has failed here."""
        if self._view.steps == self._steps.met:
            with contextlib.suppress(errors.WorldMismatch, errors.CollectiveAborted):
                self._view.refuse()


class MeetingSteps:
    """A world's collectives for the steps of a program. It knows whether this rank is amid one.

    Args:
        view: The world.
    """

    def __init__(self, view: OwnWorld) -> None:
        self._view: Final = view
        self.rank: Final = view.rank
        self.size: Final = view.size
        self.in_graphs: Final = view.in_graphs
        self.met = 0
        """How often this rank had met the others when the last collective ended."""

    def __getattr__(self, name: str) -> Any:
        method: Callable[..., Any] = getattr(self._view, name)

        def noted(*args: Any, **kwargs: Any) -> Any:
            result = method(*args, **kwargs)
            self.met = self._view.steps
            return result

        return noted


def _named(request: RunProgram) -> int:
    """Return the number that names a program among the ranks."""
    return int.from_bytes(program.digest(request.program)[:NAME_BYTES], "big")
