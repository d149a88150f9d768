"""An exception belongs to the actor that has raised it, which may keep it, change it and raise it again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import atomr_mp
from atomr_mp import errors
from atomr_mp.mapping.schedule import Failure
from tests.actors.reusing import KINDS
from tests.in_turn import in_turn
from tests.support import ACTORS, DEADLINE_S, Ledger, parts_of

COUNT = 40
CALLS = ("loop", "thread", "awaits", "raised", "batch", "keyed")
STREAMS = ("stream", "async_stream", "steps")


@pytest.fixture(scope="module")
def pool() -> Iterator[atomr_mp.Pool]:
    """One pool for all."""
    with Ledger() as ledger, ledger.start(f"{ACTORS}/reusing.py:Reusing") as started:
        yield started


@pytest.mark.parametrize("way", [*CALLS, "decoded", "items", *STREAMS])
@in_turn("kind", KINDS)
def test_each_caller_gets_its_own_text(pool: atomr_mp.Pool, way: str, kind: str) -> None:
    """Of many requests in flight, whose exceptions are one object: on the loop, a thread, in a task, a batch, a step.

    Neither does what one caller was told grow by what others were told.
    """
    for number, error in enumerate(failures(pool, way, kind)):
        told = "".join([error.message, getattr(error, "traceback_text", "")])
        assert {part.split(".")[0] for part in told.split("number ")[1:]} == {str(number)}, told
        assert error.message.count(f"Reusing.{way}") <= 1


def failures(pool: atomr_mp.Pool, way: str, kind: str, count: int = COUNT) -> list[errors.AtomrError]:
    """Return how each of many requests of a method fails."""
    method = f"Reusing.{way}"
    if way == "items":
        found = list(pool.map(method, [(kind, number) for number in range(count)], return_failures=True))
        assert all(isinstance(each, Failure) for each in found)
        return [each.error for each in found]
    if way in STREAMS:
        arguments = [((kind, number),) if way == "steps" else (kind, number) for number in range(count)]
        streams = [pool.stream(method, *each, deadline_s=DEADLINE_S) for each in arguments]
        ended = [parts_of(stream) for stream in streams]
        assert all(parts == [1] for parts, _ in ended)
        return [error for _, error in ended if error is not None]
    if way == "decoded":
        replies = [pool.call(method, {"kind": kind, "number": number}) for number in range(count)]
    else:
        replies = []
        for number in range(count):
            replies += [pool.call(method, kind, number), pool.call("Reusing.busy")]
    return [error for reply in replies if isinstance(error := reply.exception(DEADLINE_S), errors.AtomrError)]
