"""A world of a pool: actors over several devices, whose methods are called on all of them as one."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Never, NoReturn

import msgspec

from atomr_mp import errors
from atomr_mp.client.actor_ref import either, is_known_later
from atomr_mp.client.known_methods import NOT_KNOWN_YET, KnownMethods
from atomr_mp.client.reply import Undeclared
from atomr_mp.client.reply_stream import AHEAD, AHEAD_BYTES, BETWEEN_S, ReplyStream
from atomr_mp.device import DEFAULT_DEADLINE_S
from atomr_mp.protocol import amounts
from atomr_mp.protocol.flow.limits import MAX_AHEAD
from atomr_mp.protocol.keywords import checks_names, unknown_names
from atomr_mp.protocol.messages.devices import MethodInfo, WorldInfo, WorldState
from atomr_mp.protocol.pickling import CONNECT, refusal
from atomr_mp.protocol.words import did_you_mean
from atomr_mp.protocol.world_names import OF_WORLD, missing

if TYPE_CHECKING:
    from atomr_mp.client.client import Client
    from atomr_mp.client.worlds.gang_reply import GangReply


class AnyWorld:
    """A world through all its epochs, as the supervisor reports it.

    Args:
        client: The session.
        number: The world's number.
    """

    def __init__(self, client: Client, number: int) -> None:
        self._client: Final = client
        self._number: Final = number
        known = self._latest = client.worlds.by_number[number]
        self.name: Final = known.name
        """The world's name."""
        self.devices: Final = tuple(known.devices)
        """Indices of its devices, by rank."""
        self.size: Final = len(known.devices)
        """How many ranks it has."""
        self._title: Final = f"the world {known.name}"

    def __repr__(self) -> str:
        info = self.info
        return (
            f"<{type(self).__name__} {self.name} of pool {self._client.pool}: {info.state.value}, epoch {info.epoch}>"
        )

    @property
    def info(self) -> WorldInfo:
        """The world, as the supervisor last reported it."""
        self._client.read_session()
        return self._now()

    @property
    def state(self) -> WorldState:
        """Its state, as the supervisor last reported it: "ready" if calls are sent at once."""
        return self.info.state

    @property
    def epoch(self) -> int:
        """Its latest epoch, as the supervisor last reported it; 0 if there was none."""
        return self.info.epoch

    def wait_ready(self, timeout_s: float = 300.0) -> None:
        """Wait until the world is ready to be called.

        Raises:
            DeviceUnavailable: The world is closed.
            TimeoutError: It was not ready in time.
            PoolLost: The pool has ended, this client was closed, or this process was forked from the client's.
        """
        self._client.check()
        timeout_s = amounts.duration("timeout_s", timeout_s, zero=True)

        def settled() -> bool:
            return self._now().state in _SETTLED

        if not self._client.wait_until(settled, timeout_s):
            info = self.info
            why = f"{info.state.value}: {info.reason}" if info.reason else info.state.value
            raise TimeoutError(f"the world {self.name} was not ready within {timeout_s:g} s; it is {why}")
        info = self._now()
        if info.state in {WorldState.ENDING, WorldState.ENDED}:
            why = f": {info.reason}" if info.reason else ""
            raise errors.DeviceUnavailable(f"the world {self.name} is closed{why}")

    def _now(self) -> WorldInfo:
        """Return the world as it was last reported, also after its end."""
        found = self._client.worlds.by_number.get(self._number)
        if found is None:  # this session has made it, and it has ended
            found = msgspec.structs.replace(self._latest, state=WorldState.ENDED, generations=[])
        self._latest = found
        return found


@checks_names
class World(AnyWorld):
    """A world of a pool, through all its epochs. Made by `Pool.world`. Thread-safe.

    Calls work alike in threads and in event loops: each returns a `GangReply` at once, which is used as a `Reply`.

    Args:
        client: The session.
        number: The world's number.
        known: What is known of the pool's requests.
    """

    def __init__(self, client: Client, number: int, known: KnownMethods) -> None:
        super().__init__(client, number)
        self._known: Final = known
        self.actors: Final = tuple(self._latest.actors)
        """Names of its actors. They are called through the world alone."""

    __reduce__ = refusal(CONNECT, "its `name`")

    def __getattr__(self, name: str) -> NoReturn:
        missing(self, "a world with actors", name, OF_WORLD)

    def call(
        self,
        method: str,
        /,
        *args: Any,
        each: bool = False,
        deadline_s: float | None = None,
        wait: bool | None = None,
        kwargs: dict[str, Any] | None = None,
        **unknown: Never,
    ) -> GangReply:
        """Call a method on all ranks, with the same arguments; see `Pool.call`.

        Returns at once. While the pool starts, or the world forms an epoch, the call waits in this process. It is sent
        to all ranks or to none. It ends once all ranks have ended. Its deadline, and `cancel`, end the reply; no rank
        begins the call then, unless rank 0 has put it in order already, and what has begun goes on. If a rank is lost,
        the call is sent again as a whole on the next epoch, if the method is idempotent.

        Args:
            method: "Actor.method", of an actor of this world.
            *args: Its arguments, as those of `Pool.call`, but without refs. A large array is copied into shared memory
                once; all ranks read it there.
            each: Whether the result is a list of all ranks' results, by rank; else it is rank 0's.
            deadline_s: Seconds after which the reply ends with `DeadlineExceeded`; see `Pool.call`.
            wait: Whether to wait for room; see `Pool.call`.
            kwargs: Arguments by name.
            **unknown: Takes nothing: a wrong name is refused, and the nearest right one named.

        Raises:
            InvalidRequest: No such method, a method that streams, an actor that is not of this world, or an
                argument that cannot be sent.
            WrongArgument: There is no such option.
            Overloaded: Some rank has no room for one more unanswered request, and nothing was sent; or too many calls
                wait.
            DeadlineExceeded: A thread has waited for room until the deadline.
            DeviceUnavailable: The world is closed, or a member takes no work.
            PoolLost: The pool has ended.
        """
        info = self._of_this(method)
        if unknown:
            raise no_option("World.call", method, info, unknown, World.call)
        if info.streams:
            raise errors.InvalidRequest(f"{method} streams what it returns: open it with World.stream")
        undeclared = undeclared_at(info, deadline_s)
        if deadline_s is None:
            deadline_s = info.deadline_s or DEFAULT_DEADLINE_S
        else:
            deadline_s = amounts.duration("deadline_s", deadline_s)
        arguments: object = args
        if kwargs:
            arguments = self._known.named(method, info, args, kwargs, deadline_s)
        return self._client.submit_gang(
            self._client.worlds.by_number[self._number],
            method,
            arguments,
            each=bool(each),
            deadline_s=deadline_s,
            wait=wait,
            undeclared=undeclared,
        )

    def stream(
        self,
        method: str,
        /,
        *args: Any,
        first_s: float | None = None,
        between_s: float = BETWEEN_S,
        deadline_s: float | None = None,
        wait: bool | None = None,
        ahead: int = AHEAD,
        ahead_bytes: int = AHEAD_BYTES,
        kwargs: dict[str, Any] | None = None,
        **unknown: Never,
    ) -> ReplyStream:
        """Run a generator on all ranks, and return what rank 0 yields as it comes; see `Pool.stream`.

        All ranks take the same steps of all streams and calls in one order, each as far as this reader has room. The
        result is rank 0's return value, once all ranks have ended. `close`, a deadline and a task's cancellation close
        the generators on all ranks. If a rank is lost, a stream of a resumable method goes on in the next epoch.

        Args:
            method: "Actor.method", a generator, of an actor of this world.
            *args: Its arguments, see `call`.
            first_s: Seconds after which the stream ends with `DeadlineExceeded` without its first part; see
                `Pool.stream`.
            between_s: The same for each further part.
            deadline_s: The same for the end of the stream; None for none.
            wait: Whether to wait for room if too many streams are open; see `Pool.call`.
            ahead: How many parts may be on their way or unread.
            ahead_bytes: How many bytes of them.
            kwargs: Arguments by name.
            **unknown: Takes nothing; see `call`.

        Raises:
            InvalidRequest: No such method, one that does not stream, an actor that is not of this world, or an
                argument that cannot be sent.
            WrongArgument: There is no such option.
            Overloaded: Too many streams are open on some rank; or too many calls wait.
            DeadlineExceeded: A thread has waited for room until the deadline.
            DeviceUnavailable: The world is closed, or a member takes no work.
            PoolLost: The pool has ended.
        """
        info = self._of_this(method)
        if unknown:
            raise no_option("World.stream", method, info, unknown, World.stream)
        if not info.streams and info is not NOT_KNOWN_YET:
            raise errors.InvalidRequest(f"{method} returns one result: use World.call")
        undeclared = undeclared_at(info, first_s)
        default_s = info.deadline_s or DEFAULT_DEADLINE_S
        first_s = default_s if first_s is None else amounts.duration("first_s", first_s)
        return self._client.stream_gang(
            self._client.worlds.by_number[self._number],
            method,
            self._known.named(method, info, args, kwargs, first_s) if kwargs else args,
            first_s=first_s,
            between_s=amounts.duration("between_s", between_s),
            deadline_s=amounts.deadline(deadline_s, amounts.LONGEST_S),
            ahead=amounts.whole("ahead", ahead, 1, MAX_AHEAD),
            ahead_bytes=amounts.whole("ahead_bytes", ahead_bytes, 1),
            resumes=info.resumes,
            wait=wait,
            undeclared=undeclared,
        )

    def actor(
        self,
        name: str,
        *,
        each: bool = False,
        deadline_s: float | None = None,
        wait: bool | None = None,
    ) -> WorldActor:
        """Return a reference through which an actor's methods are called like methods, on all ranks.

        Args:
            name: The actor's name.
            each: Whether results are lists of all ranks' results; see `call`. Streams have no such results.
            deadline_s: Deadline of the calls, see `call`.
            wait: Whether the calls wait for room, see `call`.

        Raises:
            InvalidRequest: This world has no such actor.
        """
        self._check_actor(name, name)
        deadline_s = None if deadline_s is None else amounts.duration("deadline_s", deadline_s)
        options = {"each": each, "deadline_s": deadline_s, "wait": wait}
        calls = CallsOfActor(self.call, self.stream, self._is_starting, self.has, self.streams)
        return WorldActor(calls, f"{name} of the world {self.name}", name, options)

    def streams(self, method: str, deadline_s: float | None = None) -> bool:
        """Whether a request of an actor of this world streams; see `Pool.streams`."""
        self._of_this(method)
        return self._known.known(method, deadline_s or DEFAULT_DEADLINE_S).streams

    def has(self, method: str, deadline_s: float | None = None) -> bool:
        """Whether there is a request of this name, of an actor of this world; see `Pool.has`."""
        try:
            self._of_this(method)
        except errors.InvalidRequest:
            return False
        return self._known.has(method, deadline_s or DEFAULT_DEADLINE_S)

    def check_priority(self, method: str, priority: int) -> None:
        """Refuse a priority that is not 0: a world's calls run in the order in which they come.

        Raises:
            InvalidRequest: There is one.
        """
        self._client.worlds.check_priority(method, priority)

    def _of_this(self, method: str) -> MethodInfo:
        """Return the description of a request of this world's actors.

        Raises:
            InvalidRequest: There is no such request.
        """
        given: Any = method
        if not isinstance(given, str):
            raise errors.InvalidRequest(f'a method is named by a text, "Actor.method"; got {given!r:.200}')
        self._check_actor(given.partition(".")[0], method)
        return self._known.info(method)

    def _is_starting(self, method: str) -> bool:
        return self._known.is_starting(method)

    def _check_actor(self, actor: Any, asked: str) -> None:
        if actor not in self.actors:
            hint = did_you_mean(actor, self.actors) if isinstance(actor, str) else ""
            raise errors.InvalidRequest(
                f"{asked!r:.200} is not of the world {self.name}{hint}; its actors are: {', '.join(self.actors)}"
            )


class CallsOfActor(NamedTuple):
    """What a reference to an actor of a world calls."""

    call: Callable[..., GangReply]
    """Calls a method on all ranks."""
    stream: Callable[..., ReplyStream]
    """Runs a generator on all ranks."""
    is_starting: Callable[[str], bool]
    """Returns whether it is not known yet if there is a request of a name."""
    has: Callable[[str, float | None], bool]
    """Returns whether there is one; a thread waits to know, for so long."""
    streams: Callable[[str], bool]
    """Returns whether it streams."""


class WorldActor:
    """An actor of a world; its methods are the actor's requests, on all ranks. Made by `World.actor`.

    They return a `GangReply`; of methods that stream, a `ReplyStream`.

    Args:
        calls: What it calls.
        title: The actor in words.
        name: The actor's name.
        options: Those of the calls.
    """

    def __init__(self, calls: CallsOfActor, title: str, name: str, options: Mapping[str, Any]) -> None:
        self._calls = calls
        self._title = title
        self._name = name
        self._options = options

    __reduce__ = refusal(CONNECT, "the actor's name")

    def __repr__(self) -> str:
        return f"<actor {self._title}>"

    def __getattr__(self, name: str) -> Callable[..., Any]:
        world, method, options = self._calls, f"{self._name}.{name}", self._options
        waits = is_known_later(world.is_starting, name, method)
        if name.startswith("__") or not (waits or world.has(method, options["deadline_s"])):
            raise AttributeError(f"actor {self._title} has no request {name!r}")
        own = {option: value for option, value in options.items() if option != "each"}

        def call(*args: Any, **kwargs: Any) -> GangReply:
            return world.call(method, *args, kwargs=kwargs or None, **options)

        def stream(*args: Any, **kwargs: Any) -> ReplyStream:
            if options["each"]:
                raise errors.InvalidRequest(f"{method} streams what rank 0 yields: leave out each=")
            return world.stream(method, *args, kwargs=kwargs or None, **own)

        if waits:
            return either(call, stream, method, world.streams)
        # Python finds it here from now on, without this function.
        found = self.__dict__[name] = stream if world.streams(method) else call
        return found


def undeclared_at(info: MethodInfo, deadline_s: float | None) -> Undeclared | None:
    """Return the facts that a request lacks until its method is known; None if the method is known.

    Args:
        info: What is known of the method.
        deadline_s: The caller's deadline; None for the method's own.
    """
    return Undeclared(time.monotonic_ns(), deadline_s is None) if info is NOT_KNOWN_YET else None


def no_option(
    function: str, method: str, info: MethodInfo, unknown: Mapping[str, object], of: Callable[..., Any]
) -> errors.WrongArgument:
    """Return the error for options that a function has not; some may be meant for the method."""
    hint, name = "", next(iter(unknown))
    if name in info.parameters:
        actor, _, called = method.partition(".")
        hint = (
            f", which is one of {method}: give it as kwargs={{{name!r}: ...}}, or call "
            f"{function.partition('.')[0].lower()}.actor({actor!r}).{called}({name}=...)"
        )
    return unknown_names(function, unknown, of.__kwdefaults__ or (), hint)


_SETTLED: Final = frozenset({WorldState.READY, WorldState.ENDING, WorldState.ENDED})
"""States at which `World.wait_ready` stops."""
