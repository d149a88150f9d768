"""Methods that stream, as they are loaded: what is refused says what to change."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator

import msgspec
import pytest

from atomr_mp.errors import ActorLoadFailed
from atomr_mp.protocol.messages.control import ActorSpec
from atomr_mp_workers import Actor, Batch, Context, Live, Steps, method
from atomr_mp_workers.loading import load


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


class AsyncSetup(Actor):
    """Would never be set up."""

    async def setup(self, context: Context) -> None:  # type: ignore[override]
        """Do nothing."""

    @method
    def tell(self) -> str:
        """Return."""
        return ""


class AsyncTeardown(Actor):
    """Would never be taken down."""

    async def teardown(self) -> None:  # type: ignore[override]
        """Do nothing."""

    @method
    def tell(self) -> str:
        """Return."""
        return ""


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
        ("Asynchronous", "asynchronous generator.*run_coroutine_threadsafe"),
        ("Coroutine", "is a coroutine.*run_coroutine_threadsafe"),
        ("AsyncSetup", "setup is a coroutine.*use `def`"),
        ("AsyncTeardown", "teardown is a coroutine.*use `def`"),
        ("Exclusive", "leave out exclusive="),
        ("StepsOnLoop", "add thread=True"),
        ("StepsOfNothing", r"Live\[Arguments, Part\]"),
    ],
)
def test_what_cannot_stream_is_refused(name: str, advice: str) -> None:
    """When it is loaded: a call would fail each time."""
    with pytest.raises(ActorLoadFailed, match=advice):
        load(ActorSpec(name, f"{__name__}:{name}"))


@pytest.mark.parametrize("items", [0, 1025])
def test_steps_have_bounds(items: int) -> None:
    """As many as the board can name."""
    with pytest.raises(ValueError, match="max_items"):
        Steps(items)
