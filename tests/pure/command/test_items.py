"""The input of `atomr-mp map`, whatever is in its files."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomr_mp import errors
from atomr_mp.cli.items import open_items
from atomr_mp.mapping.schedule import Unreadable
from atomr_mp.protocol import values

PARTS = st.sampled_from(["[", "]", '{"a":', "}", "1", '"', ",", " ", "null", "\\", "\udcff", "[]", "1e999", "\r"])
LINES = st.lists(st.tuples(PARTS, st.sampled_from([1, 2, 65, 1100, 5000])), max_size=4).map(
    lambda parts: "".join(part * times for part, times in parts)
)


@given(lines=st.lists(LINES | st.sampled_from([70, 1100, 5000]).map(lambda n: "[" * n + "]" * n), max_size=3))
def test_any_line_is_an_item_or_fails_in_words(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    """However deep it is nested; and an item can be sent, or the error says why not."""
    path = tmp_path_factory.mktemp("items") / "in.jsonl"
    path.write_bytes("\n".join(lines).encode("utf-8", "surrogateescape"))
    try:
        found = open_items(str(path))
    except errors.ConfigurationError:
        return
    for item in found.each:
        if isinstance(item, Unreadable):
            assert isinstance(item.error, errors.InvalidRequest)
            assert "nested deeper than 64" in item.error.message
            continue
        with contextlib.suppress(errors.InvalidRequest):
            values.encode((item,))


def test_a_deep_line_costs_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a file as of stdin."""
    path = tmp_path / "in.jsonl"
    path.write_text("[1]\n" + "[" * 5000 + "]" * 5000 + "\n[2]\n")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(path.read_bytes())))
    for name in (str(path), "-"):
        first, deep, last = open_items(name).each
        assert (first, last) == ([1], [2])
        assert isinstance(deep, Unreadable)
        assert "line 2 of" in deep.error.message


@pytest.mark.parametrize("name", ["in.jsonl", "in.npy", "in"])
def test_what_can_be_read_once_only_is_refused_at_once(tmp_path: Path, name: str) -> None:
    """A second opening of a named pipe would wait for ever; stdin is read once."""
    path = tmp_path / name
    os.mkfifo(path)
    for _ in range(2):
        with pytest.raises(errors.ConfigurationError, match="--input - <"):
            open_items(str(path))
    with pytest.raises(errors.ConfigurationError, match="is a directory"):
        open_items(str(tmp_path))


def save_objects(path: Path) -> None:
    """Save an array of Python's objects."""
    np.save(path, np.array([{}], object), allow_pickle=True)


@pytest.mark.parametrize(
    "make",
    [lambda path: path.write_bytes(b"junk" * 9), lambda path: path.write_bytes(b""), save_objects],
    ids=["junk", "empty", "objects"],
)
def test_a_file_that_is_no_array_is_refused_without_advice_to_unpickle_it(
    tmp_path: Path, make: Callable[[Path], Any]
) -> None:
    """NumPy's own words name `allow_pickle`, which the command does not have."""
    path = tmp_path / "in.npy"
    make(path)
    with pytest.raises(errors.ConfigurationError) as refused:
        open_items(str(path))
    assert "allow_pickle" not in refused.value.message


def test_an_empty_line_is_told_as_one(tmp_path: Path) -> None:
    """It is no item that was cut off."""
    path = tmp_path / "in.jsonl"
    path.write_text("1\n\n2\n")
    with pytest.raises(errors.ConfigurationError, match=r"line 2 of .* is empty"):
        open_items(str(path))
