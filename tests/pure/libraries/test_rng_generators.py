from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final

import pytest

from atomr_mp import errors
from atomr_mp.protocol.layout import Layout
from atomr_mp.protocol.libraries import rng
from atomr_mp_workers.libraries.method import Known, LibraryMethod
from atomr_mp_workers.libraries.rng import generators
from atomr_mp_workers.libraries.rng.generators import KEPT, Generators
from atomr_mp_workers.requests.request import Later

STREAM: Final = 4711


class FakeCurand:
    """Records what is called, and has generators made whose handles count up; one name may fail.

    Args:
        fails: The function that fails.
    """

    def __init__(self, fails: str = "") -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.fails = fails
        self.made = 0

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            self.calls.append((name, *arguments))
            if name == self.fails:
                raise RuntimeError(name)
            self.made += name == "create_generator"
            return self.made

        return call

    def taken(self) -> list[tuple[Any, ...]]:
        """Return what was called since the last time."""
        calls, self.calls = self.calls, []
        return calls


@pytest.fixture
def curand(monkeypatch: pytest.MonkeyPatch) -> FakeCurand:
    """A stand-in that only records."""
    made = FakeCurand()
    monkeypatch.setattr(generators, "curand", made)
    return made


def test_an_offset_is_set_only_where_a_request_does_not_go_on(curand: FakeCurand) -> None:
    """It costs up to 0.8 ms; a generator that was just made, or has failed, goes on nowhere."""
    made = Generators(STREAM)
    made.generate(rng.Source(seed=3, offset=5), 0x100, 10, 10)
    assert curand.taken() == [
        ("create_generator", generators.TYPES["philox4_32_10"]),
        ("set_stream", 1, STREAM),
        ("set_pseudo_random_generator_seed", 1, 3),
        ("set_generator_offset", 1, 5),
        ("generate", 1, 0x100, 10),
    ]
    made.generate(rng.Source(seed=3, offset=15), 0x200, 4, 4)
    assert curand.taken() == [("generate", 1, 0x200, 4)]
    made.generate(rng.Source(seed=3, offset=18), 0x200, 4, 4)
    assert curand.taken() == [("set_generator_offset", 1, 18), ("generate", 1, 0x200, 4)]
    curand.fails = "generate"
    with pytest.raises(RuntimeError):
        made.generate(rng.Source(seed=3, offset=22), 0x200, 4, 4)
    curand.fails = ""
    curand.taken()
    made.generate(rng.Source(seed=3, offset=22), 0x200, 4, 4)
    assert curand.taken() == [("set_generator_offset", 1, 22), ("generate", 1, 0x200, 4)]


def test_a_generator_that_was_made_beforehand_takes_the_first_seed(curand: FakeCurand) -> None:
    """It is made once, and for its kind alone."""
    made = Generators(STREAM)
    for _ in range(2):
        made.make_spare("philox4_32_10")
    made.generate(rng.Source("xorwow", 5), 0, 4, 4)
    curand.taken()
    made.generate(rng.Source(seed=3), 0, 4, 4)
    made.generate(rng.Source(seed=4), 0, 4, 4)
    calls = curand.taken()
    assert [call for call in calls if call[0] == "create_generator"] == [
        ("create_generator", generators.TYPES["philox4_32_10"])
    ]
    assert [call for call in calls if "seed" in call[0]] == [
        ("set_pseudo_random_generator_seed", 1, 3),
        ("set_pseudo_random_generator_seed", 3, 4),
    ]


def test_another_seed_or_kind_resets_no_generator(curand: FakeCurand) -> None:
    """Each has a generator of its own, which goes on as if it were alone."""
    made = Generators(STREAM)
    sources = [rng.Source(seed=1), rng.Source(seed=2), rng.Source("xorwow", 1), rng.Source("sobol64", dimensions=2)]
    for source in sources:
        made.generate(source, 0, 6, 6)
    curand.taken()
    for source in reversed(sources):
        made.generate(rng.Source(source.kind, source.seed, 6, source.dimensions), 0, 6, 6)
    names = ["generate_long_long", "generate", "generate", "generate"]
    assert curand.taken() == [(name, handle, 0, 6) for name, handle in zip(names, (4, 3, 2, 1), strict=True)]


def test_the_generator_that_was_not_used_for_longest_takes_another_seed(curand: FakeCurand) -> None:
    """A few generators of a kind are kept. One that was seeded anew gets the place to begin at."""
    made = Generators(STREAM)
    for seed in (*range(KEPT), 0):
        made.generate(rng.Source(seed=seed, offset=8 * (seed == 0 and curand.made > 1)), 0, 8, 8)
    curand.taken()
    made.generate(rng.Source(seed=100), 0, 8, 8)
    assert curand.taken() == [
        ("set_stream", 2, STREAM),
        ("set_pseudo_random_generator_seed", 2, 100),
        ("set_generator_offset", 2, 0),
        ("generate", 2, 0, 8),
    ]


@pytest.mark.parametrize(
    ("fails", "source"),
    [
        ("set_pseudo_random_generator_seed", rng.Source(seed=100)),
        ("set_quasi_random_generator_dimensions", rng.Source("sobol32", dimensions=3)),
        ("set_stream", rng.Source("xorwow", 1)),
    ],
)
def test_a_generator_that_cannot_be_set_is_given_back_once(curand: FakeCurand, fails: str, source: rng.Source) -> None:
    """Neither is it used later, nor is it destroyed again; the others go on."""
    made = Generators(STREAM)
    for seed in range(KEPT):
        made.generate(rng.Source(seed=seed), 0, 8, 8)
    curand.taken()
    curand.fails = fails
    with pytest.raises(RuntimeError):
        made.generate(source, 0, 3, 3)
    given_back = [call[1] for call in curand.taken() if call[0] == "destroy_generator"]
    assert len(given_back) == 1
    curand.fails = ""
    made.generate(source, 0, 3, 3)
    made.generate(rng.Source(seed=KEPT - 1, offset=8), 0, 8, 8)
    calls = curand.taken()
    assert "destroy_generator" not in {call[0] for call in calls}
    assert given_back[0] not in {call[1] for call in calls if call[0] != "create_generator"}
    assert calls[-1] == ("generate", KEPT, 0, 8)


def test_an_output_that_was_left_out_does_not_hide_that_the_data_were_wrong() -> None:
    """The reply is the error; otherwise it is the output, when the device has done the work."""

    def refuse() -> None:
        raise errors.NumericalError(rng.BAD_WEIGHTS)

    method: Any = LibraryMethod.__new__(LibraryMethod)
    allocated = SimpleNamespace(allocate=lambda _holder, _dtype, shape: shape)
    method._context = SimpleNamespace(store=SimpleNamespace(buffers=allocated), holder=lambda: None)
    for read, expected in ((refuse, None), (lambda: None, (3,))):
        known = Known(
            None, {"out": Layout.contiguous("float32", (3,))}, lambda _request, read=read: Later(read), [], []
        )
        later = method._call(rng.Uniform(), known)
        assert type(later) is Later
        if expected is None:
            with pytest.raises(errors.NumericalError, match="p has a weight"):
                later.read()
        else:
            assert later.read() == expected
