"""Contract of the numbers that users pass: each is checked at the call, in the same way wherever it may be given."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import atomr_mp
from atomr_mp import errors
from atomr_mp.protocol.layout import MAX_BYTES
from tests.support import ACTORS, PROBE, Ledger

STREAMER = f"{ACTORS}/streaming.py:Streamer"

LONGEST_S = 10 * 365 * 86400
"""Ten years."""


@pytest.fixture(scope="module")
def pool() -> Iterator[atomr_mp.Pool]:
    """Lend a pool that all tests of this file share."""
    with Ledger() as ledger, ledger.start(PROBE, STREAMER) as pool:
        pool.wait_ready()
        yield pool


def awaited(make: Callable[[], Any]) -> Any:
    """Make a call in an event loop, and await it."""

    async def use() -> Any:
        return await make()

    return asyncio.run(use())


def amapped(pool: atomr_mp.Pool, **options: Any) -> list[Any]:
    """Map in an event loop."""

    async def use() -> list[Any]:
        return [each async for each in pool.amap("Probe.echo", [1], **options)]

    return asyncio.run(use())


def connected(pool: atomr_mp.Pool, **options: Any) -> None:
    """Connect another client."""
    atomr_mp.connect(run_dir=pool.run_dir, **options).close()


Use = Callable[[atomr_mp.Pool, Any], object]

DEADLINES: dict[str, Use] = {
    "call": lambda pool, s: pool.call("Probe.echo", 1, deadline_s=s).result(),
    "actor": lambda pool, s: pool.actor("Probe", deadline_s=s).echo(1).result(),
    "await": lambda pool, s: awaited(lambda: pool.call("Probe.echo", 1, deadline_s=s)),
    "stream": lambda pool, s: list(pool.stream("Streamer.count", 1, deadline_s=s)),
    "first_s": lambda pool, s: list(pool.stream("Streamer.count", 1, first_s=s)),
    "between_s": lambda pool, s: list(pool.stream("Streamer.count", 1, between_s=s)),
    "map": lambda pool, s: list(pool.map("Probe.echo", [1], deadline_s=s)),
    "amap": lambda pool, s: amapped(pool, deadline_s=s),
    "library": lambda pool, s: pool.device().elementwise.copy(pool.device().zeros(1), deadline_s=s).result(),
    "library in a loop": lambda pool, s: awaited(
        lambda: pool.device().elementwise.copy(pool.device().zeros(1), deadline_s=s)
    ),
}
"""Ways to give a deadline; those that are not named `deadline_s` have the argument's name."""

TIMEOUTS: dict[str, Use] = {
    "result": lambda pool, s: pool.call("Probe.echo", 1).result(s),
    "exception": lambda pool, s: pool.call("Probe.echo", 1).exception(s),
    "stream": lambda pool, s: pool.stream("Streamer.count", 1).result(s),
    "wait_ready": lambda pool, s: pool.wait_ready(s),
}

WHOLE: dict[str, tuple[Use, int, int | None]] = {
    "device": (lambda pool, n: pool.call("Probe.echo", 1, device=n).result(), 0, 0),
    "device of a stream": (lambda pool, n: list(pool.stream("Streamer.count", 1, device=n)), 0, 0),
    "device of an actor": (lambda pool, n: pool.actor("Probe", device=n).echo(1).result(), 0, 0),
    "device itself": (lambda pool, n: pool.device(n).zeros(1), 0, 0),
    "priority": (lambda pool, n: pool.call("Probe.echo", 1, priority=n).result(), -8, 7),
    "priority of a stream": (lambda pool, n: list(pool.stream("Streamer.count", 1, priority=n)), -8, 7),
    "priority of a map": (lambda pool, n: list(pool.map("Probe.echo", [1], priority=n)), -8, 7),
    "ahead": (lambda pool, n: list(pool.stream("Streamer.count", 1, ahead=n)), 1, 4096),
    "ahead_bytes": (lambda pool, n: list(pool.stream("Streamer.count", 1, ahead_bytes=n)), 1, None),
    "in_flight": (lambda pool, n: list(pool.map("Probe.echo", [1], in_flight=n)), 1, None),
    "in_flight of amap": (lambda pool, n: amapped(pool, in_flight=n), 1, None),
    "batch_size": (lambda pool, n: list(pool.map("Probe.echo", [1], batch_size=n)), 1, None),
    "attempts": (lambda pool, n: list(pool.map("Probe.echo", [1], attempts=n)), 1, None),
    "max_waiting": (lambda pool, n: connected(pool, max_waiting=n), 0, None),
    "max_replays": (lambda pool, n: connected(pool, max_replays=n), 0, 2**16 - 1),
    "shape": (lambda pool, n: pool.device().zeros((0, n)), 0, MAX_BYTES),
}
"""Ways to give a whole number, with the least and the largest that it may be. The argument's name comes first."""

NO_NUMBERS = st.sampled_from(["5", b"5", True, [1], {}, object(), 1j, math.nan, -math.inf, np.array([1, 2])])


@hypothesis.settings(max_examples=40)
@hypothesis.given(
    way=st.sampled_from(sorted(DEADLINES)),
    wrong=NO_NUMBERS | st.floats(max_value=0) | st.integers(max_value=0) | st.floats(min_value=LONGEST_S * 1.01),
)
def test_no_deadline_is_taken_that_cannot_be_kept(pool: atomr_mp.Pool, way: str, wrong: Any) -> None:
    """The error names the argument and says what it was, whatever the way; others' calls go on."""
    name = way if way.endswith("_s") else "deadline_s"
    with pytest.raises(errors.InvalidRequest) as caught:
        DEADLINES[way](pool, wrong)
    assert str(caught.value).startswith(f"{name} must be a positive number of seconds")
    assert str(caught.value).endswith(f"got {wrong!r}")
    assert awaited(lambda: pool.call("Probe.echo", 1)) == 1


@hypothesis.settings(max_examples=20)
@hypothesis.given(
    way=st.sampled_from(sorted(DEADLINES)),
    right=st.sampled_from([30, 30.5, np.float32(30), np.int64(60), Fraction(61, 2), 86400.0 * 400, LONGEST_S]),
)
def test_any_number_of_seconds_is_kept(pool: atomr_mp.Pool, way: str, right: Any) -> None:
    """Of Python's and NumPy's, up to ten years."""
    DEADLINES[way](pool, right)


@hypothesis.settings(max_examples=20)
@hypothesis.given(
    way=st.sampled_from(sorted(TIMEOUTS)), wrong=NO_NUMBERS | st.floats(max_value=-1e-9) | st.just(math.inf)
)
def test_no_time_to_wait_is_taken_that_cannot_be_waited(pool: atomr_mp.Pool, way: str, wrong: Any) -> None:
    """The request goes on."""
    with pytest.raises(errors.InvalidRequest, match=r"^timeout_s must be 0 or a positive number of seconds"):
        TIMEOUTS[way](pool, wrong)


@pytest.mark.parametrize("way", TIMEOUTS)
def test_any_time_may_be_waited(pool: atomr_mp.Pool, way: str) -> None:
    """None at all, and years."""
    with contextlib.suppress(TimeoutError):
        TIMEOUTS[way](pool, 0)
    TIMEOUTS[way](pool, LONGEST_S)


@hypothesis.settings(max_examples=50)
@hypothesis.given(way=st.sampled_from(sorted(WHOLE)), data=st.data())
def test_whole_numbers_are_taken_within_their_bounds(pool: atomr_mp.Pool, way: str, data: st.DataObject) -> None:
    """The error names the argument; NumPy's integers are taken as Python's."""
    use, least, most = WHOLE[way]
    beyond = st.integers(max_value=least - 1) | st.integers(min_value=(2**63 if most is None else most + 1))
    wrong = data.draw(NO_NUMBERS | st.just(1.5) | st.just(math.inf) | beyond)
    with pytest.raises(errors.InvalidRequest, match=way.split(maxsplit=1)[0]):
        use(pool, wrong)
    use(pool, np.int64(data.draw(st.integers(least, min(least + 3, least + 3 if most is None else most)))))


def test_layouts_of_refs_take_whole_numbers_only(pool: atomr_mp.Pool) -> None:
    """Errors are typed, and name the argument."""
    ref = pool.device().zeros((2, 3))
    for wrong in (1.5, "1", None, math.nan):
        for name, use in (
            ("shape", lambda at: ref.reshape(at, 2)),
            ("axes", lambda at: ref.transpose(at, 0)),
            ("strides", lambda at: ref.as_strided([2], [at])),
            ("offset", lambda at: ref.as_strided([2], [4], at)),
            ("for_s", lambda at: ref.share(at) if not isinstance(at, float) or math.isnan(at) else ref.share(4000)),
        ):
            with pytest.raises(errors.InvalidRequest, match=f"^{name}"):
                use(wrong)


@pytest.mark.parametrize("wrong", ["", ".", ".length", "Nope", "Nope.length", "probe.echo", None, 0, b"Words"])
def test_devices_are_told_of_actors_that_there_are(pool: atomr_mp.Pool, wrong: Any) -> None:
    """A missing actor has no devices. It is not taken for an actor that all devices have."""
    for known in ("Probe", "Probe.echo", "Streamer"):
        assert pool.devices_for(known) == pool.devices
    with pytest.raises(errors.InvalidRequest, match=r"there is no actor|must be \"Actor.method\""):
        pool.devices_for(wrong)


@pytest.mark.parametrize("wrong", [True, "0", 0.0, [], b"0"])
def test_a_device_of_another_kind_is_told_to_be_a_whole_number(pool: atomr_mp.Pool, wrong: Any) -> None:
    """Without bounds, which are those of messages."""
    with pytest.raises(errors.InvalidRequest, match=r"^device is a whole number from 0 to 0; got"):
        pool.call(pool.methods[0], device=wrong)
