from __future__ import annotations

import random
import resource
from pathlib import Path
from typing import Final

import msgpack
import pytest

from atomr_mp.protocol.codec import MAX_MESSAGE_BYTES
from fuzzing import running, trees
from fuzzing.bounds import CHECK_BYTES
from fuzzing.target import Target
from fuzzing.targets import LIVE, PURE, TARGETS
from tests.support import Ledger

CORPUS: Final = Path(__file__).parent / "corpus"

COUNTS: Final = {"board": 60, "journal": 60, "client": 40, "session": 40, "control": 6, "remote": 40, "users": 3}
"""New inputs of targets that take more than a millisecond for one."""

COUNT: Final = 400


def told(finds: list[running.Find]) -> str:
    """Return finds in words."""
    return "\n\n".join(f"{find.data[:200]!r}\n{find.why}" for find in finds)


@pytest.mark.parametrize("name", PURE)
def test_any_input_is_taken_or_refused_in_bounded_time_and_memory(name: str) -> None:
    """Inputs of one seed, and those that were found before, are tried. `scripts/fuzz` goes on from there."""
    with PURE[name]() as target:
        _, old = running.replay(target, CORPUS)
        done, new = running.fuzz(target, 1, count=COUNTS.get(name, COUNT))
    assert not [*old, *new], told([*old, *new])
    assert done == COUNTS.get(name, COUNT)


@pytest.mark.parametrize("name", LIVE)
def test_no_neighbour_notices_any_message_or_user(ledger: Ledger, name: str) -> None:  # noqa: ARG001 - counts what is left
    """A neighbour's call is answered by the same process, and nothing of the stranger's is left."""
    with LIVE[name]() as target:
        _, old = running.replay(target, CORPUS)
        _, new = running.fuzz(target, 1, count=COUNTS[name])
    assert not [*old, *new], told([*old, *new])


def test_every_folder_of_the_corpus_has_a_target() -> None:
    """None is unchecked."""
    assert {path.name for path in CORPUS.iterdir()} <= set(TARGETS)


# --- the fuzzer itself -----------------------------------------------------------------------------------------------


class Broken(Target):
    """Bears nothing with a certain byte in it: raises, allocates, or goes on for ever."""

    name = "broken"

    def make(self, rng: random.Random) -> bytes:
        """Return a list."""
        return bytes(msgpack.packb([1, "two", {"three": rng.random()}]))

    def check(self, data: bytes) -> None:
        """Do one of them."""
        if b"\xc3" in data:
            raise LookupError
        if b"\xc2" in data:
            bytearray(2 * CHECK_BYTES)
        while data == b"for ever":
            pass


def test_what_raises_or_grows_or_goes_on_is_found_and_replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One find for each kind; its input is kept, and shows the same when it is checked again."""
    monkeypatch.setattr("fuzzing.bounds.CHECK_S", 0.05)
    limit = resource.getrlimit(resource.RLIMIT_AS)
    with Broken() as target:
        _, finds = running.fuzz(target, 1, count=2000)
        finds.append(running.Find(b"for ever", "", ""))
        for find in finds:
            running.keep(target, tmp_path, find)
        known, again = running.replay(target, tmp_path)
    assert known == len(finds)
    kinds = {find.place.partition(" ")[0] for find in again}
    assert kinds == {"LookupError", "MemoryError", "TooSlowError"}
    assert resource.getrlimit(resource.RLIMIT_AS) == limit


@pytest.mark.parametrize("name", TARGETS)
def test_valid_inputs_are_valid_and_changes_are_many(name: str) -> None:
    """A seed gives the same inputs each time; a target whose changes change nothing would find nothing."""
    target = TARGETS[name].__new__(TARGETS[name])  # without what its checks need
    if name == "json":
        pytest.skip("makes its inputs by the schemas that its checks need")
    made = [target.make(random.Random(seed)) for seed in range(20)]
    assert made == [target.make(random.Random(seed)) for seed in range(20)]
    changed = {target.mutate(random.Random(seed), made[seed]) for seed in range(20)}
    assert len(changed) > 10
    assert all(len(data) < MAX_MESSAGE_BYTES for data in changed)


def test_a_tree_that_nobody_changes_is_the_same_message() -> None:
    """Also one with bytes and extensions in which there is msgpack again."""
    value = [1, -5, 2**64 - 1, 0.5, "text", b"bytes", [], {"a": [1]}, msgpack.packb([1, {2: 3}])]
    value.append(msgpack.ExtType(2, msgpack.packb([bytes(22), "x"])))
    packed = msgpack.packb(value)
    assert msgpack.unpackb(trees.packed(trees.parsed(packed)), strict_map_key=False) == value
