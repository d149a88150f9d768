"""Configuration of all tests: what is skipped here, such as what needs a GPU, and how skips are counted."""

from __future__ import annotations

import collections
import contextlib
import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import hypothesis
import pytest

# Before this package is imported, which decides then; all processes of the tests inherit it.
CHECKS: Final = os.environ.setdefault("ATOMR_MP_CHECKS", "1")

from tests.support import BACKEND, Ledger  # noqa: E402

# The driver's own device file. Asking it this way loads no CUDA library into the process that runs the tests.
GPU_DRIVER: Final = Path("/dev/nvidiactl")
# A busy machine is no failure: what must not take long has a timeout of its own.
hypothesis.settings.register_profile("atomr-mp", deadline=None)
hypothesis.settings.register_profile("quick", deadline=None, max_examples=15, stateful_step_count=20)
hypothesis.settings.load_profile("atomr-mp")
# A shell has those ignore it that it starts in the background, and all that they start: commands would not end by it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that runs the long tests too."""
    parser.addoption("--all", action="store_true", help="run the tests marked `extended` too")


@pytest.hookimpl(trylast=True)  # after -k and -m, whose tests left out are not to be counted
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests that need a GPU as skipped if there is none, and the long ones without `--all`."""
    left_out = {}
    if not GPU_DRIVER.exists():
        left_out["gpu"] = f"needs an NVIDIA GPU: there is no {GPU_DRIVER}"
    if not config.getoption("all"):
        left_out["extended"] = "takes long, and runs with scripts/test --all"
    for item in items:
        for marker, reason in left_out.items():
            if item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


def pytest_collection_finish() -> None:
    """Let the collector pass over what will live to the end: thousands of tests, and the modules that they use.

    Else each collection looks at all of them, which takes a third of a second; many tests ask for one.
    """
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say at the end how many tests were skipped, a line for each reason."""
    counts = collections.Counter(_reason(report) for report in terminalreporter.stats.get("skipped", []))
    for reason, count in counts.most_common():
        terminalreporter.write_line(f"skipped {count}: {reason}", yellow=True)


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Return why a test was skipped, or a whole file of them."""
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return reason.removeprefix("Skipped: ")


@pytest.fixture(scope="session", autouse=True)
def cuda_is_here() -> None:
    """Let this process have its own contexts, with their threads and descriptors, before a ledger counts any."""
    if BACKEND == "cuda":
        import cupy

        for number in range(cupy.cuda.runtime.getDeviceCount()):
            with cupy.cuda.Device(number):
                cupy.zeros(1).sum().get()
        with contextlib.suppress(ImportError):  # the tests that need it say so
            import torch

            torch.zeros(1, device="cuda").sum().item()


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    """Where a test's pools are started; checks afterwards that nothing of them is left."""
    with Ledger() as counting:
        yield counting
