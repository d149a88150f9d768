"""Blobs: values of any size, in chunks that come in any order, and once each."""

from __future__ import annotations

import random
from typing import Any
from unittest import mock

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies

from atomr_mp import errors
from atomr_mp.protocol import values
from atomr_mp.remote import blobs


def read_all(blob: blobs.EncodedBlob) -> bytearray:
    """Return all of a blob."""
    content = bytearray()
    while len(content) < blob.nbytes:
        content += blob.read(len(content), min(blobs.CHUNK_BYTES, blob.nbytes - len(content)))
    return content


def test_a_value_survives_the_way() -> None:
    """It has large and small arrays of any layout."""
    rng = np.random.default_rng(3)
    large = rng.normal(size=(700, 300))
    value: dict[str, Any] = {
        "large": large,
        "of another layout": large.T,
        "some": rng.normal(size=5000),
        "small": np.arange(3, dtype="int16"),
        "text": "x" * 300_000,
        "list": [1, 2.5, None, b"bytes"],
    }
    encoded = blobs.encode(value)
    assert len(encoded.large) == 2
    body, frames = blobs.opened(memoryview(read_all(encoded.blob())))
    found: Any = values.Decoder[Any]().decode(body, frames)
    assert found.keys() == value.keys()
    for name, expected in value.items():
        if isinstance(expected, np.ndarray):
            np.testing.assert_array_equal(found[name], expected)
        else:
            assert found[name] == expected


@hypothesis.given(strategies.binary(max_size=300), strategies.integers(0, 2**32))
def test_any_bytes_are_a_blob_or_refused(raw: bytes, seed: int) -> None:
    """Also a blob with changed bytes."""
    whole = read_all(blobs.encode([np.arange(3000), 7]).blob())
    rng = random.Random(seed)
    for _ in range(3):
        whole[rng.randrange(len(whole))] = rng.randrange(256)
    for content in (raw, whole, whole[: rng.randrange(len(whole))]):
        try:
            body, frames = blobs.opened(memoryview(bytearray(content)))
            values.Decoder[Any]().decode(body, frames)
        except errors.InvalidRequest:
            pass


@mock.patch.object(blobs, "CHUNK_BYTES", 512)
@hypothesis.given(strategies.integers(0, 20 * 512), strategies.randoms(use_true_random=False))
def test_chunks_come_in_any_order_and_after_cuts(nbytes: int, rng: random.Random) -> None:
    """Each is taken once; never are more on their way than the credit allows."""
    source = blobs.EncodedBlob([bytes(nbytes // 2), rng.randbytes(nbytes - nbytes // 2)] if nbytes else [b""])
    pull = blobs.Pull(memoryview(bytearray(nbytes)))
    flying: list[tuple[int, int]] = []
    while not pull.whole:
        flying += list(pull.wants())
        assert 0 < len(flying) <= blobs.CREDIT
        if rng.random() < 0.1:
            flying.clear()
            pull.restart()
            continue
        offset, size = flying.pop(rng.randrange(len(flying)))
        data = memoryview(source.read(offset, size))
        pull.take(offset, data)
        with pytest.raises(ValueError, match="not asked for"):
            pull.take(offset, data)
    assert bytes(pull.buffer) == (bytes(read_all(source)) if nbytes else b"")


@pytest.mark.parametrize(("offset", "nbytes"), [(-1, 1), (0, 0), (0, 11), (10, 1), (2**63, 1), (0, 2**40)])
def test_what_a_blob_does_not_have_is_refused(offset: int, nbytes: int) -> None:
    """A chunk lies within it."""
    with pytest.raises(ValueError, match="of 10"):
        blobs.EncodedBlob([b"0123456789"]).read(offset, nbytes)
