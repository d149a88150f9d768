"""Methods that stream, as they are loaded: what is refused says what to change."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator

import msgspec
import pytest

from atomr_mp.errors import ActorLoadFailed
from atomr_mp.protocol.messages.control import ActorSpec
from atomr_mp.protocol.messages.devices import Resumes
from atomr_mp_workers import Actor, Batch, Context, Live, Steps, method
from atomr_mp_workers.loading import load, max_running_of


class Good(Actor):
    """Streams in both ways."""

    @method(thread=True, idempotent=True, exclusive=True)
    def tell(self, words: int) -> Generator[str, None, int]:
        """Yield words."""
        yield from ["word"] * words
        return words

    @method(thread=True, batch=Steps(max_items=7))
    def together(self, live: Live[list[int], str]) -> None:
        """Take a step."""


class OnLoop(Actor):
    """Has no thread."""

    @method
    def tell(self) -> Generator[str, None, None]:
        """Yield."""
        yield ""


class InBatches(Actor):
    """Is both."""

    @method(thread=True, batch=Batch())
    def tell(self, words: list[str]) -> Generator[str, None, None]:
        """Yield."""
        yield from words


class Asynchronous(Actor):
    """Would need a loop."""

    @method(thread=True)
    async def tell(self) -> AsyncIterator[str]:
        """Yield."""
        yield ""


class Coroutine(Actor):
    """Would need one too."""

    @method(thread=True)
    async def tell(self) -> str:
        """Return."""
        return ""


class AsyncInBatches(Actor):
    """Is both."""

    @method(batch=Batch())
    async def tell(self, words: list[str]) -> list[str]:
        """Return."""
        return words


class AsyncSteps(Actor):
    """Is both, too."""

    @method(batch=Steps())
    async def tell(self, live: Live[str, str]) -> None:
        """Take a step."""


class AsyncExclusive(Actor):
    """Has a thread with all others."""

    @method(exclusive=True)
    async def tell(self) -> AsyncIterator[str]:
        """Yield."""
        yield ""


class AsyncResumable(Actor):
    """Does not stream."""

    @method(resumable=True)
    async def tell(self, start: int) -> str:
        """Return."""
        return str(start)


class AsyncSetup(Actor):
    """Would never be set up."""

    async def setup(self, _context: Context) -> AsyncIterator[None]:  # type: ignore[override]
        """Yield."""
        yield

    @method
    def tell(self) -> str:
        """Return."""
        return ""


class GoodAsync(Actor):
    """Has an event loop."""

    async def setup(self, context: Context) -> None:
        """Do nothing."""

    @method(idempotent=True)
    async def say(self, word: str) -> str:
        """Return."""
        return word

    @method(resumable=True)
    async def tell(self, words: int, start: int) -> AsyncIterator[str]:
        """Yield."""
        for n in range(start, words):
            yield str(n)


class Exclusive(Actor):
    """Is no generator."""

    @method(thread=True, exclusive=True)
    def tell(self) -> str:
        """Return."""
        return ""


class StepsOnLoop(Actor):
    """Has no thread."""

    @method(batch=Steps())
    def tell(self, live: Live[str, str]) -> None:
        """Take a step."""


class StepsOfNothing(Actor):
    """Does not say what it takes."""

    @method(thread=True, batch=Steps())
    def tell(self, live: list[str]) -> None:
        """Take a step."""


def test_clients_are_told_what_streams_and_of_what_kind() -> None:
    """Arguments, parts and the most that run together."""
    together, tell = sorted(
        load(ActorSpec("Good", f"{__name__}:Good")).info.methods, key=lambda each: -each.batch_items
    )
    assert (together.streams, together.parameters, together.batch_items) == (True, ["arguments"], 7)
    assert (tell.streams, tell.parameters, tell.batch_items, tell.idempotent) == (True, ["words"], 0, True)
    schema = msgspec.json.decode(tell.schema)
    assert schema["result"] == {"type": "string"}
    assert msgspec.json.decode(together.schema)["result"] == {"type": "string"}
    assert msgspec.json.decode(together.schema)["arguments"]["properties"]["arguments"]["type"] == "array"


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("OnLoop", r"@method\(thread=True\)"),
        ("InBatches", "leave out batch="),
        ("Asynchronous", "asynchronous.*leave out thread="),
        ("Coroutine", "asynchronous.*leave out thread="),
        ("AsyncInBatches", "leave out batch="),
        ("AsyncSteps", "leave out batch="),
        ("AsyncExclusive", "leave out exclusive="),
        ("AsyncResumable", "leave out resumable="),
        ("AsyncSetup", "setup is a generator"),
        ("Exclusive", "leave out exclusive="),
        ("StepsOnLoop", "add thread=True"),
        ("StepsOfNothing", r"Live\[Arguments, Part\]"),
    ],
)
def test_what_cannot_stream_is_refused(name: str, advice: str) -> None:
    """When it is loaded: a call would fail each time."""
    with pytest.raises(ActorLoadFailed, match=advice):
        load(ActorSpec(name, f"{__name__}:{name}"))


def test_what_is_asynchronous_needs_an_event_loop() -> None:
    """Coroutines are calls, asynchronous generators are streams; other actors have no loop."""
    actor = load(ActorSpec("GoodAsync", f"{__name__}:GoodAsync"))
    say, tell = actor.info.methods
    assert (say.name, say.streams, say.parameters) == ("say", False, ["word"])
    assert (tell.name, tell.streams, tell.parameters, tell.resumes) == ("tell", True, ["words"], Resumes.START)
    assert msgspec.json.decode(tell.schema)["result"] == {"type": "string"}
    assert all(each.is_async for each in actor.methods)
    assert actor.needs_loop
    assert not load(ActorSpec("Good", f"{__name__}:Good")).needs_loop


@pytest.mark.parametrize("count", [0, 257, "many", True])
def test_the_number_of_running_requests_is_bounded(count: object) -> None:
    """Each of those that run has a place on the board."""
    actor = load(ActorSpec("GoodAsync", f"{__name__}:GoodAsync"))
    assert max_running_of(actor) == 128
    vars(actor.instance)["max_running"] = count
    with pytest.raises(ActorLoadFailed, match=r"max_running.*from 1 to 256"):
        max_running_of(actor)
