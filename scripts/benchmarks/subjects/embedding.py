"""Sentences a second through a real model, MiniLM, in batches; compared with the model in a loop in one process.

The texts are those of `examples/search_stdlib.py`: first of all lengths, then of about one length only, so that
grouping similar texts gains nothing. Every contestant computes with half the cores as threads, since the code between
the model and its clients needs some too.
"""

from __future__ import annotations

import collections
import itertools
import os
import random
import runpy
from collections.abc import Iterable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Final

from benchmarks.contestant import BATCH, Contestant, Embed
from benchmarks.sizes import Sizes

EXAMPLE: Final = Path(__file__).parents[3] / "examples" / "search_stdlib.py"
ALIKE: Final = range(32, 64)
"""Characters of texts that are alike."""
SEED: Final = 1


def embed(contestant: Contestant, sizes: Sizes) -> dict[str, float]:
    """Return the rates, of texts of all lengths and of about one."""
    use_half_the_cores()
    way = contestant.embedding(sizes.backend)
    return {} if way is None else rates(way, sizes.embed_s)


def use_half_the_cores() -> None:
    """Have the model compute with half the cores, wherever it runs."""
    os.environ["OMP_NUM_THREADS"] = str(max(1, len(os.sched_getaffinity(0)) // 2))
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def rates(way: Embed, seconds: float) -> dict[str, float]:
    """Return the rates, of texts of all lengths and of about one."""
    mixed = texts()
    alike = [text for text in mixed if len(text) in ALIKE]
    return {"embed": _rate(way, mixed, seconds), "embed_alike": _rate(way, alike, seconds)}


def texts() -> list[str]:
    """Return the texts to embed, in the same disorder each time."""
    found = [entry.text for entry in runpy.run_path(str(EXAMPLE))["documentation"]()]
    random.Random(SEED).shuffle(found)
    return found


def _rate(way: Embed, given: list[str], seconds: float) -> float:
    collections.deque(way(given[: 4 * BATCH]), maxlen=0)
    begun = perf_counter()
    done = sum(1 for _ in way(_until(given, begun + seconds)))
    return done / (perf_counter() - begun)


def _until(given: Iterable[str], end: float) -> Iterator[str]:
    return itertools.takewhile(lambda _: perf_counter() < end, itertools.cycle(given))
