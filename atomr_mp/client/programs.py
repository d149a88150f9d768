"""The programs that a device's worker knows in this session: a run of a known program is sent with its digest alone.

A worker keeps programs of a session in numbered places, each until the client tells it another one for that place. To
be named by its digest, a program must have been told in a run that has been answered with a result; and a place is
given to another program only when no request that may name the program there is without its answer. So it does not
matter in which order requests arrive that were sent on several connections.

A worker that does not know a program, such as the next incarnation, answers `ProgramUnseen`. Then the request is sent
again with the whole program.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Final

import msgspec

from atomr_mp.protocol.libraries.program import KEPT_BYTES, PLACES, RunProgram

if TYPE_CHECKING:
    from atomr_mp.client.reply import Reply


class _Told:
    """A program in a place of an incarnation; the place is free when the last reference to this has gone.

    Args:
        free: Places that are free.
        generation: The incarnation.
    """

    __slots__ = ("_free", "generation", "known", "place")

    def __init__(self, free: deque[int], generation: int) -> None:
        self._free: Final = free
        self.generation: Final = generation
        self.place: Final = free.popleft()
        self.known = False
        """The worker has it."""

    def __del__(self) -> None:
        self._free.append(self.place)


class ProgramRun:
    """The form in which a request names its program; the request keeps this until it is answered.

    Args:
        told: The place where the worker has the program, or will keep it.
        definition: The program.
        tells: Whether the request has the whole program, so that the worker knows it from then on.
    """

    __slots__ = ("_told", "definition", "tells")

    def __init__(self, told: _Told, definition: bytes, *, tells: bool) -> None:
        self._told: Final = told
        self.definition: Final = definition
        self.tells: Final = tells

    def answered(self, reply: Reply) -> None:
        """Take in the answer to a request that had the whole program."""
        if reply.error is None and reply.generation == self._told.generation:
            self._told.known = True

    def whole(self, body: bytes) -> bytes:
        """Return the body of a request with the whole program instead of the digest, which its worker does not know."""
        self._told.known = False
        fields: list[msgspec.Raw] = msgspec.msgpack.decode(body, type=list[msgspec.Raw])
        for name, value in (("program", self.definition), ("digest", b""), ("place", -1)):
            fields[_FIELDS.index(name)] = msgspec.Raw(msgspec.msgpack.encode(value))
        return msgspec.msgpack.encode(fields)


class _Incarnation:
    """The programs that an incarnation knows."""

    def __init__(self, generation: int, places: int) -> None:
        self.generation: Final = generation
        self.free: Final = deque(range(places))
        self.told: Final[OrderedDict[bytes, _Told]] = OrderedDict()


class KnownPrograms:
    """The programs that a device's worker knows in a session. Thread-safe.

    Args:
        places: Number of programs that the worker keeps.
    """

    def __init__(self, places: int = PLACES) -> None:
        self._places: Final = places
        self._lock: Final = threading.Lock()
        self._incarnation: _Incarnation | None = None

    def shortened(self, request: RunProgram, generation: int) -> tuple[RunProgram, ProgramRun | None]:
        """Return a run as it is sent, and the object that its request keeps.

        Args:
            request: The run, with definition and digest; without a digest it is sent as it is.
            generation: The device's incarnation, as far as the client knows.
        """
        definition, digest = request.program, request.digest
        if not digest:
            return request, None
        with self._lock:
            found = self._incarnation
            if found is None or found.generation != generation:
                found = self._incarnation = _Incarnation(generation, self._places)
            told = found.told.get(digest)
            if told is not None:
                found.told.move_to_end(digest)
            elif len(definition) <= KEPT_BYTES:
                if found.told and not found.free:
                    found.told.popitem(last=False)  # its place is free at once if no request refers to it
                if found.free:
                    told = found.told[digest] = _Told(found.free, generation)
        if told is None:
            return _sent(request, definition, b"", -1), None
        if told.known:
            return _sent(request, b"", digest, told.place), ProgramRun(told, definition, tells=False)
        return _sent(request, definition, b"", told.place), ProgramRun(told, definition, tells=True)


def say_whole(reply: Reply) -> bool:
    """Put the whole program into a request whose worker does not know it; return whether it had only the digest."""
    run = next((each for each in reply.kept if isinstance(each, ProgramRun)), None)
    if run is None or run.tells:
        return False
    reply.kept = tuple(each for each in reply.kept if each is not run)
    reply.body = run.whole(reply.body)
    return True


def _sent(request: RunProgram, definition: bytes, digest: bytes, place: int) -> RunProgram:
    return msgspec.structs.replace(request, program=definition, digest=digest, place=place)


_FIELDS: Final = RunProgram.__struct_fields__
