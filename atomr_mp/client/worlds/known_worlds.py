"""The worlds of a pool, as the supervisor last reported them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from atomr_mp import errors
from atomr_mp.protocol.messages.devices import MethodInfo, WorldInfo, WorldState
from atomr_mp.protocol.words import did_you_mean


class KnownWorlds:
    """The worlds that a client knows. One thread at a time takes news in; any may ask.

    Args:
        worlds: The worlds when the client connected.
    """

    def __init__(self, worlds: Iterable[WorldInfo]) -> None:
        self.by_number: dict[int, WorldInfo] = {}
        """The worlds, by number. The dict is replaced, not changed: other threads read it meanwhile."""
        self.of_actors: dict[str, str] = {}
        """The worlds' names, by the names of their actors."""
        for each in worlds:
            self.take(each)

    def take(self, world: WorldInfo) -> None:
        """Take in a world as it is now; one that this session has made is forgotten once it has ended."""
        by_number = {**self.by_number, world.number: world}
        if world.made and world.state is WorldState.ENDED:
            del by_number[world.number]
        self.by_number = by_number
        self.of_actors = {actor: each.name for each in self.by_number.values() for actor in each.actors}

    def named(self, name: str) -> WorldInfo:
        """Return the world of this name.

        Raises:
            InvalidRequest: There is none.
        """
        worlds = {each.name: each for each in self.by_number.values() if not each.made}
        if not isinstance(name, str):
            raise errors.InvalidRequest(f"a world is named by a text; got {name!r:.200}")
        if name not in worlds:
            hint = did_you_mean(name, worlds)
            known = ", ".join(sorted(worlds)) or "none"
            raise errors.InvalidRequest(f"there is no world {name!r}{hint}; this pool's worlds are: {known}")
        return worlds[name]

    def of(self, method: str) -> WorldInfo | None:
        """Return the world of a method's actor, None if it is of none.

        Args:
            method: "Actor.method", or the actor's name.
        """
        name = self.of_actors.get(method.partition(".")[0])
        return None if name is None else self.named(name)

    def check_priority(self, method: str, priority: int) -> None:
        """Refuse a priority for a call of a world.

        Args:
            method: "Actor.method".
            priority: The call's.

        Raises:
            InvalidRequest: There is one, and the method is of a world's actor.
        """
        world = self.of(method)
        if world is not None and priority:
            raise errors.InvalidRequest(
                f"{method} belongs to the world {world.name}, whose calls run in the order in which they come: give "
                f"no priority; got {priority}"
            )

    def refuse(self, method: str, methods: Mapping[str, MethodInfo] | None = None) -> None:
        """Refuse an ordinary call of a world's actor.

        Args:
            method: "Actor.method", or the actor's name.
            methods: Descriptions by name, which say whether the method streams.

        Raises:
            InvalidRequest: The actor belongs to a world.
        """
        actor = method.partition(".")[0]
        name = self.of_actors.get(actor)
        if name is not None:
            info = (methods or {}).get(method)
            how = "call(...)"
            if info is None:
                how += f", or .stream(...) if {method} streams"
            elif info.streams:
                how = "stream(...)"
            if method == actor:
                how = f"actor({actor!r})"
            raise errors.InvalidRequest(f"{actor} belongs to the world {name}: call pool.world({name!r}).{how}")
