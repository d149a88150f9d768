"""Measures the runtime beside its floor and beside its peers, in turns within one run; see `--help`.

Every measurement is base, runtime, base, runtime, … with fresh processes each time, so that both see the same
machine. The ratios mean more than the times. Goals are shown beside the results; none is enforced.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from benchmarks import machine, report
from benchmarks.contestants import BASE, CONTESTANTS, missing
from benchmarks.metrics import Results
from benchmarks.rounds import RoundFailedError, run_round
from benchmarks.scenarios import NEEDED, SCENARIOS
from benchmarks.sizes import Sizes

ROUNDS: Final = 5
QUICK_ROUNDS: Final = 3


def main() -> int:
    """Measure, and return the exit status: 0 whatever the numbers are."""
    arguments = _arguments()
    rounds = arguments.rounds or (QUICK_ROUNDS if arguments.quick else ROUNDS)
    sizes = Sizes.of(rounds, quick=arguments.quick, backend=arguments.backend, kills=arguments.kills)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # either way the processes are to be ended
    facts = machine.facts() | {"backend": arguments.backend}
    print(report.facts_text(facts))
    results: Results = {}
    failures = [
        f"{name} is absent: {package} is not installed (scripts/setup bench)"
        for name in arguments.against
        if (package := missing(name))
    ]
    contestants = [name for name in arguments.against if not missing(name)]
    try:
        for scenario in arguments.only:
            if absent := [each for each in NEEDED.get(scenario, ()) if not _is_installed(each)]:
                failures.append(f"{scenario} is left out: {', '.join(absent)} not installed (scripts/setup bench)")
                continue
            _measure(scenario, contestants, rounds, sizes, results, failures)
    except KeyboardInterrupt:
        failures.append("interrupted: the table holds what was measured until then")
    print(report.tables_text(results, contestants, rounds))
    for failure in failures:
        print(f"bench: {failure}", file=sys.stderr)
    if arguments.json:
        written = report.as_json(results, contestants, rounds, facts, failures)
        arguments.json.write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")
    return 0


def _measure(
    scenario: str, contestants: list[str], rounds: int, sizes: Sizes, results: Results, failures: list[str]
) -> None:
    for number in range(1, rounds + 1):
        for contestant in (BASE, *contestants):
            print(f"bench: {scenario}, round {number} of {rounds}: {contestant}", file=sys.stderr)
            try:
                values = run_round(scenario, contestant, sizes)
            except RoundFailedError as error:
                failures.append(f"{scenario}, round {number}, {contestant}: {error}")
                values = {}
            results.setdefault((contestant, scenario), []).append(values)


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # nor what it is in
        return False


def _arguments() -> argparse.Namespace:
    peers = [name for name in CONTESTANTS if name != BASE]
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="scripts/bench",
        description="Measure the runtime, and others of its kind, side by side with a bare pyzmq echo.",
        epilog=f"Measurements: {', '.join(SCENARIOS)}. Contestants: {', '.join(peers)}.",
    )
    parser.add_argument("--rounds", type=_positive, metavar="N", help=f"default: {ROUNDS}, or {QUICK_ROUNDS} if quick")
    parser.add_argument("--quick", action="store_true", help="fewer calls and rounds: about a minute")
    parser.add_argument(
        "--only",
        type=_names(list(SCENARIOS)),
        default=list(SCENARIOS),
        metavar="NAME,…",
        help="only these measurements",
    )
    parser.add_argument(
        "--against", type=_names(peers), default=["runtime"], metavar="NAME,…", help="contestants; default: runtime"
    )
    parser.add_argument(
        "--backend",
        choices=("host", "cuda"),
        default="host",
        help="what the models of `embed` and `workers-per-gpu` run on; default: host",
    )
    parser.add_argument(
        "--kills", type=_positive, metavar="N", help="workers killed in a round, of each kind; default: four or less"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured there")
    return parser.parse_args()


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1")
    return int(text)


def _names(known: list[str]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        names = text.split(",")
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(known)}")
        return names

    return parse


if __name__ == "__main__":
    sys.exit(main())
