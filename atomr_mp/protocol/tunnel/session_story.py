"""What a remote client has said and heard in its session, as far as the end of a relay makes it matter. Pure.

A relay that ends takes along what it was about to pass on, in both directions. The next connection goes on with the
session (`Hello.resume`), and the supervisor says how things stand. From that and from what the client knows, this makes
the messages that the client would have heard. What the client has said is said again: a question that was not answered,
and anything else that may not have reached the supervisor. All of it may be said twice, but orders: whoever gave one is
told that it may have been carried out.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

import msgspec

from atomr_mp import errors
from atomr_mp.protocol.codec import MAX_U64, ErrorInfo
from atomr_mp.protocol.messages import operators, session, suspects
from atomr_mp.protocol.messages.devices import ActorInfo, DeviceInfo, WorldInfo, WorldState

MOST_ENDS: Final = 64
"""Most ends of a device that are known to have been heard."""

NEVER: Final = MAX_U64
"""The end of something that was sent on a connection that has ended."""

NOT_TOLD: Final = "it ended while the connection to the pool was cut, and what it had started is not known"
LOST_ORDER: Final = "the pool's relay ended before the answer came: the order may have been carried out"

_REPEATABLE: Final = (
    operators.StatusRequest
    | operators.InventoryRequest
    | operators.ListResidents
    | session.OpenSlab
    | session.RegisterSlab
    | session.LendSlab
    | suspects.Suspect
)
"""Questions that may be asked twice."""


class _Said(NamedTuple):
    """Something that was said."""

    message: session.FromClient
    number: int | None
    """The id by which it is answered; None if it is not."""
    end: int | None
    """Where it ends in the bytes of its connection; None if it was not sent."""


class SessionStory:
    """One session, over all its connections."""

    def __init__(self) -> None:
        self._hello: session.Hello | None = None
        self._proof: session.SessionProof | None = None
        self.away = False
        """Whether what is said now has to wait: the next connection does not go on yet."""
        self._said: deque[_Said] = deque()
        """What may have to be said again, in its order."""
        self._devices: Final[dict[int, DeviceInfo]] = {}
        """The devices, as the client knows them."""
        self._actors: list[ActorInfo] = []
        self._worlds: Final[dict[int, WorldInfo]] = {}
        """The worlds, as the client knows them, by number."""
        self._ends: Final[dict[int, deque[int]]] = {}
        """The generations whose ends were heard, by device."""
        self._suspicions: Final[dict[suspects.RequestKey, suspects.Suspicion]] = {}
        self._welcome: session.Welcome | None = None
        """The welcome of the connection on which the session goes on, until it does."""
        self._missed: Final[list[session.IncarnationEnded]] = []
        self._changed_worlds: Final[list[WorldInfo]] = []
        """Changes of worlds since that welcome."""
        self._is_traced = False
        """Whether the client has heard that the pool is traced."""
        self._kept: Final[set[int]] = set()
        """Slabs that the supervisor has."""

    # --- what the client says --------------------------------------------------------------------------------------

    def say(self, message: session.FromClient, end: int | None, passed_on: int) -> None:
        """Note a message.

        Args:
            message: The message.
            end: Where it ends in the bytes of the connection; None if it waits for the next one.
            passed_on: So many bytes of the connection have reached the supervisor.
        """
        if isinstance(message, session.Hello):
            self._hello = message
            return
        number = None if isinstance(message, suspects.Acquit) else getattr(message, "id", None)
        self._said.append(_Said(message, number, end))
        while self._said and self._said[0].number is None and _before(self._said[0], passed_on):
            self._said.popleft()
        if len(self._said) > MOST_ENDS and any(_is_done(each, passed_on) for each in self._said):
            self._said = deque(each for each in self._said if not _is_done(each, passed_on))

    def cut(self, passed_on: int) -> session.Hello | None:
        """The connection has ended; return what the next one begins with, None if nothing was said yet."""
        self._said = deque(
            each if each.end is None else each._replace(end=NEVER)
            for each in self._said
            if not _is_done(each, passed_on)
        )
        self._welcome = None
        self._missed.clear()
        self._changed_worlds.clear()
        self._kept.clear()
        if self._hello is None:
            return None
        self.away = True
        return msgspec.structs.replace(self._hello, resume=self._proof)

    def again(self) -> list[session.FromClient]:
        """Return the messages to send again on the new connection, in their order; `say` notes each once more."""
        messages = [each.message for each in self._said]
        self._said.clear()
        return messages

    # --- what the client hears -------------------------------------------------------------------------------------

    def hear(self, message: session.FromSupervisor) -> list[session.FromSupervisor]:
        """Note a message; return what the client hears, in its order."""
        if self.away:
            return self._hear_news(message)
        number = getattr(message, "id", None)
        if number:
            self._answered(number)
        match message:
            case session.Welcome():
                if self._hello is not None and not self._hello.observer:
                    self._proof = session.SessionProof(message.session, message.secret)
                self._actors = message.actors
                self._devices.update({device.index: device for device in message.devices})
                self._worlds.update({world.number: world for world in message.worlds})
                self._suspicions.update({each.request: each for each in message.suspicions})
            case session.DeviceChanged(device, actors):
                self._devices[device.index] = device
                if actors is not None:
                    self._actors = actors
            case session.WorldChanged(world):
                self._worlds[world.number] = world
            case session.IncarnationEnded(device_index, generation):
                self._ends.setdefault(device_index, deque(maxlen=MOST_ENDS)).append(generation)
            case suspects.Suspicions() | session.TraceChanged():
                self._note(message)
        return [message]

    def _hear_news(self, message: session.FromSupervisor) -> list[session.FromSupervisor]:
        match message:
            case session.Goodbye():
                return [message]
            case session.Welcome():
                self._welcome = message
                if self._proof is None:  # a session for questions goes on as another one
                    self.away = False
                    return [*self._hear_first(message), *self._refuse_orders()]
            case session.SlabKept(slab):
                self._kept.add(slab)
            case session.IncarnationEnded():
                self._missed.append(message)
            case session.WorldChanged(world):
                self._changed_worlds.append(world)
            case session.SessionResumed(living):
                if self._welcome is None:
                    raise errors.ProtocolError("a session goes on without a welcome")
                self.away = False
                living_ones = {(each.device, each.generation) for each in living}
                # If the pool is traced still, the supervisor says so next.
                over = self.hear(session.TraceChanged(on=False)) if self._is_traced else []
                return [*self._catch_up(self._welcome, living_ones), *over, *self._settle()]
            case _:
                raise errors.ProtocolError(f"{type(message).__name__} before a session goes on")
        return []

    def _hear_first(self, welcome: session.Welcome) -> list[session.FromSupervisor]:
        """Return the welcome, if the client has not heard one: the relay has ended before."""
        first = not self._devices
        heard = self.hear(welcome)
        return heard if first else []

    def _catch_up(self, welcome: session.Welcome, living: set[tuple[int, int]]) -> list[session.FromSupervisor]:
        """Return the news: ends first, then the devices as they are now, then their worlds, then verdicts."""
        news: list[session.FromSupervisor] = []
        for ended in self._missed:
            if ended.generation not in self._ends.get(ended.device, ()):
                news += self.hear(ended)
        for index, known in self._devices.items():
            gone = known.generation and (index, known.generation) not in living
            if gone and known.generation not in self._ends.get(index, ()):
                news += self.hear(_not_told(index, known.generation))
        actors = None if welcome.actors == self._actors else welcome.actors
        for device in welcome.devices:
            if actors is not None or device != self._devices.get(device.index):
                news += self.hear(session.DeviceChanged(device, actors))
                actors = None
        for world in self._worlds_of(welcome):
            if world != self._worlds.get(world.number):
                news += self.hear(session.WorldChanged(world))
        changed = self._changed(welcome.suspicions)
        if changed:
            news += self.hear(suspects.Suspicions(changed))
        return news

    def _worlds_of(self, welcome: session.Welcome) -> list[WorldInfo]:
        """Return the worlds as they are now. Those that the supervisor does not name any longer have ended."""
        found = {
            number: msgspec.structs.replace(world, state=WorldState.ENDED, generations=[], reason="")
            for number, world in self._worlds.items()
        }
        found |= {world.number: world for world in (*welcome.worlds, *self._changed_worlds)}
        return list(found.values())

    def _changed(self, known: list[suspects.Suspicion]) -> list[suspects.Suspicion]:
        """Return the verdicts that are others now."""
        held = {each.request for each in known}
        cleared = [
            suspects.Suspicion(request, suspects.Verdict.CLEARED, 0)
            for request in self._suspicions
            if request not in held
        ]
        return cleared + [each for each in known if each != self._suspicions.get(each.request)]

    def _settle(self) -> list[session.FromSupervisor]:
        """Answer the registrations that the supervisor has carried out; they are not repeated."""
        done = [
            each.message.id
            for each in self._said
            if isinstance(each.message, session.RegisterSlab) and each.message.slab in self._kept
        ]
        for number in done:
            self._answered(number)
        return [*(session.Answer(number) for number in done), *self._refuse_orders()]

    def _refuse_orders(self) -> list[session.FromSupervisor]:
        """Answer the orders that were sent: they are not repeated."""
        lost = ErrorInfo.of(errors.ConnectionLost(LOST_ORDER, maybe_executed=True))
        orders = [
            each.number
            for each in self._said
            if each.number is not None and each.end is not None and not isinstance(each.message, _REPEATABLE)
        ]
        for number in orders:
            self._answered(number)
        return [session.Answer(number, lost) for number in orders]

    def _answered(self, number: int) -> None:
        for each in self._said:
            if each.number == number:
                self._said.remove(each)
                return

    def _note(self, message: suspects.Suspicions | session.TraceChanged) -> None:
        if isinstance(message, session.TraceChanged):
            self._is_traced = message.on
            return
        for each in message.changed:
            if each.verdict is suspects.Verdict.CLEARED:
                self._suspicions.pop(each.request, None)
            else:
                self._suspicions[each.request] = each


def _before(said: _Said, passed_on: int) -> bool:
    return said.end is not None and said.end <= passed_on


def _is_done(said: _Said, passed_on: int) -> bool:
    """Whether it has reached the supervisor, and is not answered."""
    return said.number is None and _before(said, passed_on)


def _not_told(device: int, generation: int) -> session.IncarnationEnded:
    """Return an end without a report, after which all requests of the incarnation may have run."""
    error = errors.WorkerLost(
        f"generation {generation} of device {device}: {NOT_TOLD}",
        maybe_executed=True,
        device=device,
        generation=generation,
    )
    return session.IncarnationEnded(
        device, generation, planned=False, error=ErrorInfo.of(error), started=[], known_since_ns=MAX_U64
    )
