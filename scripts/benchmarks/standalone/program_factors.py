"""Conjugate gradients as a program, with numbers as factors and by products of one column, in turns within one run.

    python -m scripts.benchmarks.standalone.program_factors

Medians are in microseconds for ten iterations, with the tenth and the ninetieth percentile beside them.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import scipy.sparse

import atomr_mp

sys.path.append(str(Path(__file__).resolve().parents[2]))

from benchmarks import machine
from benchmarks.standalone.chained import in_turns, ratio, summary

STEPS: Final = 10
SIZES: Final = (10**3, 10**5)
ROUNDS: Final = 7
BLOCK: Final = 10

Add = Callable[[Any, Any, Any, Any], object]
"""Records y += number·x of a program."""


def by_factor(p: Any, x: Any, y: Any, number: Any) -> None:
    """Record it with the number as a factor."""
    p.blas.axpy(x, y, alpha=number)


def by_column(p: Any, x: Any, y: Any, number: Any) -> None:
    """Record it as an outer product with a vector of one element."""
    p.blas.ger(y.reshape(-1, 1), x, number.reshape(1))


def recorded(device: atomr_mp.Device, a: Any, n: int, add: Add) -> Any:
    """Return a program of some iterations on a right-hand side of ones."""
    x, r, now = (device.zeros(n, "float64") for _ in range(3))
    b, rr = device.full(n, 1.0, "float64"), device.full((), float(n), "float64")
    with device.program() as p:
        e, q = p.elementwise, p.empty((n,), "float64")
        p.blas.copy(b, r)  # from the start in each run: numbers that vanish are slow
        p.blas.copy(b, now)
        p.blas.scal(x, alpha=0)
        for _ in range(STEPS):
            p.sparse.spmv(a, now, q)
            step = e.divide(rr, p.blas.inner(now, q))
            add(p, now, x, step)
            add(p, q, r, e.negative(step))
            after = p.blas.inner(r, r)
            p.blas.scal(now, alpha=e.divide(after, rr))
            p.blas.axpy(r, now)
            rr = after
    return p


def run(program: Any) -> None:
    """Run a program, and wait for it."""
    program.run().result()


def main() -> None:
    """Measure, and print the figures as JSON."""
    found: dict[str, Any] = {"machine": machine.facts(), "rounds": ROUNDS}
    with tempfile.TemporaryDirectory() as folder, atomr_mp.start(gpus=1, backend="host", run_dir=Path(folder)) as pool:
        device = pool.device()
        for n in SIZES:
            a = device.sparse.csr(scipy.sparse.diags_array([-1.0, 2.5, -1.0], offsets=[-1, 0, 1], shape=(n, n)).tocsr())
            programs = {add.__name__: recorded(device, a, n, add) for add in (by_factor, by_column)}
            ways = {name: partial(run, program) for name, program in programs.items()}
            times = in_turns(ways, ROUNDS, BLOCK)
            found[f"ten_iterations_of_{n}_unknowns_us"] = summary(times)
            found[f"by_factor_beside_by_column_{n}"] = ratio(times, "by_factor", "by_column")
    json.dump(found, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
