"""What processes of a world by NCCL tell each other by pages, and what the dead have left behind."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as some

from atomr_mp_workers.worlds.nccl.leftovers import sweep
from atomr_mp_workers.worlds.nccl.library import ID_BYTES
from atomr_mp_workers.worlds.nccl.page import (
    EPOCH,
    NCCL_PAGE_BYTES,
    SPARES_AT,
    OwnPage,
    Spare,
    has_ready,
    name_of,
    read_offer,
    read_spare,
    serves,
)

IDENTITY: Final = bytes(range(ID_BYTES))


@pytest.fixture
def page() -> OwnPage:
    """Return a new page."""
    return OwnPage(memoryview(bytearray(NCCL_PAGE_BYTES)).cast("Q"))


def test_an_offer_is_of_one_epoch(page: OwnPage) -> None:
    """Whoever waits for another one goes on waiting."""
    assert read_offer(page.words, 1) is None
    page.offer(1, IDENTITY)
    assert read_offer(page.words, 1) == (IDENTITY,)
    assert read_offer(page.words, 2) is None
    page.offer(2, None)
    assert read_offer(page.words, 2) == (None,)
    assert read_offer(page.words, 1) is None


def test_a_spare_is_told_with_its_processes(page: OwnPage) -> None:
    """One that is changed meanwhile is none, and nothing of a foreign page is a size."""
    spare = Spare((1, 7, 3), IDENTITY)
    page.offer_spare(1, spare)
    assert read_spare(page.words, 1, 3) == spare
    assert read_spare(page.words, 0, 3) is None
    page.words[SPARES_AT + 1 * (1 + 64 + 16) + 1] = 2
    assert read_spare(page.words, 1, 3) is None
    name = name_of((1, 7, 3))
    assert not has_ready(page.words, 1, name)
    page.show_ready(1, name)
    assert has_ready(page.words, 1, name)
    assert not serves(page.words)
    page.show_serves()
    assert serves(page.words)


@given(some.binary(min_size=8, max_size=400), some.integers(0, 63))
def test_any_page_is_an_offer_or_none(content: bytes, rank: int) -> None:
    """Whatever another process writes."""
    filled = (content * (NCCL_PAGE_BYTES // len(content) + 1))[:NCCL_PAGE_BYTES]
    words = memoryview(bytearray(filled)).cast("Q")
    found = read_offer(words, words[EPOCH])
    assert found is not None
    assert found[0] is None or len(found[0]) == ID_BYTES
    spare = read_spare(words, rank, 4)
    assert spare is None or len(spare.generations) == 4


def test_names_tell_processes_apart() -> None:
    """And are no zero."""
    assert len({name_of((one, other)) for one in range(20) for other in range(20)}) == 400
    assert name_of(()) > 0


def test_what_nobody_has_open_or_mapped_is_removed(tmp_path: Path) -> None:
    """Of NCCL's and the driver's files of this user, once they are some seconds old."""
    shm, processes = tmp_path / "shm", tmp_path / "proc"
    shm.mkdir()
    for name in ("nccl-abc123", "nccl-open11", "nccl-maps22", "cuda.shm.0.7b.1", "other", "nccl-young1"):
        (shm / name).write_bytes(b"x")
        if name != "nccl-young1":
            os.utime(shm / name, (time.time() - 60,) * 2)
    (processes / "12" / "fd").mkdir(parents=True)
    (processes / "12" / "fd" / "3").symlink_to(shm / "nccl-open11")
    (processes / "12" / "maps").write_text(
        f"7f00-7f01 rw-s 00000000 00:01 9    {shm}/nccl-maps22\n7f02-7f03 r--p 0 0 0\n"
    )
    (processes / "13").mkdir()
    (processes / "self").mkdir()
    assert sweep(shm, processes) == ["cuda.shm.0.7b.1", "nccl-abc123"]
    assert sorted(each.name for each in shm.iterdir()) == ["nccl-maps22", "nccl-open11", "nccl-young1", "other"]
    assert sweep(tmp_path / "none", processes) == []
