"""MiniLM on a GPU, through the runtime and in a loop in one process, in turns of seconds.

    PYTHONPATH=scripts python -m benchmarks.gpu.embedding > embedding.json

Needs a GPU, the extra of its CUDA version, and the extra `embed`. `scripts/bench --only embed` compares whole runs;
here so short turns are compared with those beside them that a machine whose speed changes changes both. With the
argument `loop` this is the process with the loop: it answers each line `KIND SECONDS` with a rate, in texts a second.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from benchmarks.base import Base
from benchmarks.contestant import Embed
from benchmarks.runtime import Runtime
from benchmarks.subjects.embedding import ALIKE, texts

TURNS: Final = 40
TURN_S: Final = 1.0
KINDS: Final = ("all lengths", "one length")


def given(kind: str) -> list[str]:
    """Return the texts of a kind."""
    return [text for text in texts() if kind == "all lengths" or len(text) in ALIKE]


def rate(embed: Embed, some: list[str], seconds: float) -> float:
    """Return how many texts a second are embedded, for so long."""
    begun = time.perf_counter()
    until = itertools.takewhile(lambda _: time.perf_counter() < begun + seconds, itertools.cycle(some))
    count = sum(1 for _ in embed(until))
    return count / (time.perf_counter() - begun)


def loop() -> None:
    """Be the process with the model in a loop."""
    embed = Base(Path()).embedding("cuda")
    kinds = {kind: given(kind) for kind in KINDS}
    for line in sys.stdin:
        kind, seconds = line.rsplit(maxsplit=1)
        print(rate(embed, kinds[kind], float(seconds)), flush=True)


def main() -> None:
    """Measure, and print."""
    os.environ["OMP_NUM_THREADS"] = str(max(1, len(os.sched_getaffinity(0)) // 2))
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    command = [sys.executable, "-m", "benchmarks.gpu.embedding", "loop"]
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader", "--id=0"]
    result: dict[str, Any] = {"date": time.strftime("%Y-%m-%d"), "turn_s": TURN_S}
    result["gpu"] = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process,
        tempfile.TemporaryDirectory() as folder,
        Runtime(Path(folder)) as runtime,
    ):
        embed = runtime.embedding("cuda")
        for kind in KINDS:
            some = given(kind)
            pairs = [(told(process, kind), rate(embed, some, TURN_S)) for _ in range(TURNS + 1)]
            result[kind] = summary(pairs[1:])  # the first warms up
            sys.stderr.write(f"{kind}: {result[kind]['ratio']}\n")
        assert process.stdin is not None
        process.stdin.close()
    print(json.dumps(result, indent=1))


def told(process: subprocess.Popen[str], kind: str) -> float:
    """Return the rate of the loop in the other process, for one turn."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{kind} {TURN_S}\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def summary(pairs: list[tuple[float, float]]) -> dict[str, Any]:
    """Return medians of the rates, and of the ratios of turns side by side with their quartiles."""
    ratios = [runtime / direct for direct, runtime in pairs]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return {
        "loop": round(statistics.median(direct for direct, _ in pairs)),
        "runtime": round(statistics.median(runtime for _, runtime in pairs)),
        "ratio": {"quartiles": [round(each, 3) for each in (low, middle, high)]},
        "turns": [[round(direct), round(runtime)] for direct, runtime in pairs],
    }


if __name__ == "__main__":
    loop() if sys.argv[1:] == ["loop"] else main()
