"""Asks our server as Triton's users do, and a real Triton what was recorded of it (see `scripts/test-oip`)."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # `tests` has what the recorded cases are compared with

from oip_clients import perf, recorded, theirs  # noqa: E402 - `tests` is found by the line above
from oip_clients.environments import MissingError  # noqa: E402

PARTS = ("examples", "tests", "perf", "recorded")


def main() -> int:
    """Run the parts; return the exit status."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="scripts/test-oip",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="""\
Asks `atomr-mp serve` by the Open Inference Protocol as Triton's users do, in four parts:

  examples  the client repository's Python examples, by name        half a minute
  tests     the server repository's tests of its front ends         three minutes
  perf      perf_analyzer 2.51, sync, async, streaming              two minutes
  recorded  the cases in tests/cases, sent to a real Triton 2.51    a minute

It takes ten minutes at most, and three more to install clients and Triton in .venv-oip the first time. It fails if an
example, a test or a package is missing, if one fails that has to pass, and if one passes that is expected to fail.
""",
    )
    parser.add_argument("--client", type=Path, metavar="DIR", help="a checkout of triton-inference-server/client")
    parser.add_argument("--server", type=Path, metavar="DIR", help="a checkout of triton-inference-server/server")
    parser.add_argument("--only", choices=PARTS, action="append", help="one part; may be given several times")
    parser.add_argument("--large", action="store_true", help="tests of large payloads, too: 20 GiB of memory")
    options = parser.parse_args()
    parts = options.only or PARTS
    for part, name in (("examples", "client"), ("tests", "server")):
        if part in parts and getattr(options, name) is None:
            parser.error(f"the {part} need --{name}")
    runs: dict[str, Callable[[], list[str]]] = {
        "examples": lambda: theirs.run_examples(options.client),
        "tests": lambda: theirs.run_tests(options.server, large=options.large),
        "perf": perf.run,
        "recorded": recorded.run,
    }
    wrong: list[str] = []
    for part in parts:
        begun = time.monotonic()
        print(part, flush=True)
        try:
            wrong += runs[part]()
        except MissingError as error:
            wrong.append(f"{part}: {error}")
        print(f"  {time.monotonic() - begun:.0f} s", flush=True)
    for each in wrong:
        print(f"wrong: {each}", flush=True)
    print(f"{len(wrong)} wrong" if wrong else "all is well")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
