"""Texts and bytes that are larger than a call's body, as arguments and as results."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

import atomr_mp
from atomr_mp import errors
from tests.support import ACTORS, Ledger, client_of, settled, wait_generation

TEXTS = f"{ACTORS}/large_texts.py:Texts"

IMAGES = [os.urandom(700_000 + at) for at in range(12)]


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[Ledger, atomr_mp.Pool]]:
    """One pool for all tests that leave it as it was."""
    with Ledger() as ledger, ledger.start(TEXTS) as pool:
        yield ledger, pool


@pytest.fixture
def pool(shared: tuple[Ledger, atomr_mp.Pool]) -> Iterator[atomr_mp.Pool]:
    """A client of the shared pool; afterwards the worker is as before and has nothing to do."""
    with client_of(shared[1]) as own:
        yield own


def test_they_arrive_as_they_were(pool: atomr_mp.Pool) -> None:
    """By position and by name, in typed and untyped methods; results, too."""
    assert pool.call("Texts.images", IMAGES).result() == IMAGES
    names = [str(at) for at in range(12)]
    named = pool.call("Texts.images", kwargs={"images": IMAGES, "names": names}).result()
    assert named == [name.encode() + image for name, image in zip(names, IMAGES, strict=True)]
    text = "añ€" * 2_000_000
    assert pool.call("Texts.text", text).result() == text[::-1]
    for value in (IMAGES, IMAGES[0] * 10, ["€" * 800_000] * 3, {"a": 1}):
        assert pool.call("Texts.anything", value).result() == {"it": value}


def test_what_does_not_fit_is_refused_in_words(pool: atomr_mp.Pool) -> None:
    """As if it was small."""
    with pytest.raises(errors.InvalidRequest, match=r"Expected `bytes`, got `str` - at `images\[0\]`"):
        pool.call("Texts.images", ["x" * 2_000_000]).result()
    with pytest.raises(errors.InvalidRequest, match="Expected `str`, got `bytes`"):
        pool.call("Texts.text", b"x" * 5_000_000).result()
    with pytest.raises(errors.InvalidRequest, match="bytes, more than the"):
        pool.call("Texts.anything", [7] * 5_000_000).result()
    assert pool.call("Texts.anything", {"all": [IMAGES]}).result() == {"it": {"all": [IMAGES]}}


def test_they_are_sent_again_after_a_death(ledger: Ledger) -> None:
    """Their memory is kept as long as a call may need it."""
    with ledger.start(TEXTS, run_dir="dies", backoff_initial_s=0.05) as pool:
        os.kill(pool.status().devices[0].pid or 0, signal.SIGSTOP)
        replies = [pool.call("Texts.images", IMAGES[:at]) for at in range(2, 12)]
        os.kill(pool.status().devices[0].pid or 0, signal.SIGKILL)
        wait_generation(pool, 2)
        for at, reply in enumerate(replies, 2):
            assert reply.result() == IMAGES[:at]


@pytest.mark.parametrize("kind", ["text", "bytes"])
def test_they_are_parts_of_streams(shared: tuple[Ledger, atomr_mp.Pool], kind: str) -> None:
    """Of all sizes; they count for what their reader may have unread."""
    ledger, pool = shared
    sizes = [5_000_000, 100, 20_000_000, 60_000_000, 3_000_000]
    with pool.stream("Texts.parts", sizes, kind) as stream:
        found = list(stream)
    assert [len(each.encode()) if isinstance(each, str) else len(each) for each in found] == sizes
    before = len(ledger.runs())
    with pool.stream("Texts.parts", [6_000_000] * 50, kind, ahead_bytes=20_000_000) as stream:
        next(stream)
        assert pool.call("Texts.anything", 1).result() == {"it": 1}
        assert settled(lambda: len(ledger.runs()) - before >= 4)
        assert not settled(lambda: len(ledger.runs()) - before > 8, 0.3)


def test_rows_of_several_are_joined(pool: atomr_mp.Pool) -> None:
    """As small ones are."""
    replies = [pool.call("Texts.lengths", IMAGES[at : at + 3]) for at in range(0, 12, 3)]
    assert [each for reply in replies for each in reply.result()] == list(map(len, IMAGES))
