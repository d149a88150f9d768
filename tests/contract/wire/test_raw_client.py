"""examples/raw_client.py, a client without this package, calls a living pool."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

import atomr_mp

EXAMPLES: Final = Path(__file__).parents[3] / "examples"
IMAGES: Final = np.load(EXAMPLES / "data" / "digits_test.npy")
LABELS: Final = np.load(EXAMPLES / "data" / "digits_test_labels.npy")

ACTOR: Final = """
import itertools
from collections.abc import AsyncIterator, Iterator
import numpy as np
from numpy.typing import NDArray
from typing import Any
from atomr_mp_workers import Actor, method

class Values(Actor):
    @method
    def same(self, value: Any) -> Any:
        return value

    @method
    def minus(self, a: int, b: int = 1) -> int:
        return a - b

    @method
    def count(self, rows: int, columns: int) -> NDArray[np.float32]:
        return np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)

    @method(thread=True)
    def parts(self, count: int, length: int = 1) -> Iterator[Any]:
        for n in range(count):
            yield np.full(length, n, np.int64) if length > 1 else n
        return sum(range(count))

    @method
    async def endless(self) -> AsyncIterator[int]:
        try:
            for n in itertools.count():
                yield n
        finally:
            self.closed = True

    @method
    def is_closed(self) -> bool:
        return getattr(self, "closed", False)

    @method(thread=True)
    def broken(self) -> Iterator[int]:
        yield 0
        raise ValueError("on purpose")
"""


@pytest.fixture(scope="module")
def pool() -> Iterator[atomr_mp.Pool]:
    """Run a pool with the digits and an actor that gives its arguments back."""
    directory = Path(tempfile.mkdtemp(dir="/tmp"))
    actor = directory / "raw_values.py"
    actor.write_text(ACTOR)
    actors = [f"{EXAMPLES}/digits.py:Digits", f"{actor}:Values"]
    with atomr_mp.start(actors=actors, gpus=2, backend="host", run_dir=directory / "run") as started:
        yield started
    shutil.rmtree(directory)


def raw_client(pool: atomr_mp.Pool, method: str, arguments: Any, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the example."""
    return subprocess.run(
        [sys.executable, EXAMPLES / "raw_client.py", pool.run_dir, method, json.dumps(arguments), *options],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def result(pool: atomr_mp.Pool, method: str, arguments: Any, *options: str) -> Any:
    """Run the example and return what it printed."""
    ran = raw_client(pool, method, arguments, *options)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def test_it_reads_a_digit_on_each_device(pool: atomr_mp.Pool) -> None:
    """The call of its own docstring: an array goes in, a number comes out."""
    for device in (0, 1):
        assert result(pool, "Digits.predict", [IMAGES[3].tolist()], "--device", str(device)) == LABELS[3]


@pytest.mark.parametrize("rows", [2, 100], ids=["inline", "in a payload frame"])
def test_it_reads_arrays(pool: atomr_mp.Pool, rows: int) -> None:
    """Small arrays come in the body, large ones in frames of their own."""
    expected = np.arange(rows * 64, dtype=np.float32).reshape(rows, 64)
    assert result(pool, "Values.count", [rows, 64]) == expected.tolist()


def test_plain_values_come_back_as_they_went(pool: atomr_mp.Pool) -> None:
    """All that JSON can say crosses the wire and returns, arrays included."""
    value = {"a": [None, True, "ü", -1, 2.5, []], "b": {"c": {}}, "d": 2**63}
    assert result(pool, "Values.same", [value]) == value
    assert result(pool, "Values.same", [[[1, 2.5], [3, 4]]]) == [[1, 2.5], [3, 4]]


def test_arguments_go_by_name_too(pool: atomr_mp.Pool) -> None:
    """A map is by name, and defaults are the method's."""
    assert result(pool, "Values.minus", {"b": 2, "a": 5}) == 3
    assert result(pool, "Values.minus", {"a": 5}) == 4


def streamed(pool: atomr_mp.Pool, method: str, arguments: Any, *options: str) -> list[Any]:
    """Run the example with a stream, and return what it printed: the parts, and the result."""
    ran = raw_client(pool, method, arguments, "--stream", *options)
    assert ran.returncode == 0, ran.stderr
    return [json.loads(line) for line in ran.stdout.splitlines()]


@pytest.mark.parametrize(("count", "ahead"), [(0, 1), (5, 1), (300, 7)])
def test_it_reads_streams(pool: atomr_mp.Pool, count: int, ahead: int) -> None:
    """Part by part, as far as it grants credit; then the result."""
    assert streamed(pool, "Values.parts", [count], "--ahead", str(ahead)) == [*range(count), sum(range(count))]


def test_it_reads_streams_of_arrays(pool: atomr_mp.Pool) -> None:
    """Arrays come in frames of their own."""
    assert streamed(pool, "Values.parts", {"count": 20, "length": 500})[:-1] == [[n] * 500 for n in range(20)]


def test_it_ends_streams(pool: atomr_mp.Pool) -> None:
    """It closes a stream that it does not want to the end."""
    assert streamed(pool, "Values.endless", [], "--most", "10") == [*range(10), None]
    assert result(pool, "Values.is_closed", []) is True


def test_it_prints_what_a_stream_has_ended_with(pool: atomr_mp.Pool) -> None:
    """It prints that behind the parts."""
    ran = raw_client(pool, "Values.broken", [], "--stream")
    assert (ran.returncode, ran.stdout) == (1, "0\n")
    assert ran.stderr.startswith("actor_failed: ")


def test_an_error_is_printed_with_its_code(pool: atomr_mp.Pool) -> None:
    """A refusal is an error message and a status, no traceback."""
    for method, arguments in (("Values.minus", ["x"]), ("No.such", [])):
        ran = raw_client(pool, method, arguments)
        assert ran.returncode == 1
        assert ran.stderr.startswith("invalid_request: "), ran.stderr


def test_it_knows_nothing_of_this_package() -> None:
    """It would be no pattern for other languages otherwise."""
    imports = [line for line in (EXAMPLES / "raw_client.py").read_text().splitlines() if " import " in f" {line}"]
    assert not [line for line in imports if "atomr_mp" in line or "numpy" in line]
