"""What holds for every test: those marked `gpu` are skipped, and counted, where there is no NVIDIA GPU."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import hypothesis
import pytest

from tests.support import BACKEND, Ledger

# The driver's own device file. Asking it this way loads no CUDA library into the process that runs the tests.
GPU_DRIVER: Final = Path("/dev/nvidiactl")
# A busy machine is no failure: what must not take long has a timeout of its own.
hypothesis.settings.register_profile("atomr-mp", deadline=None)
hypothesis.settings.load_profile("atomr-mp")
# A shell has those ignore it that it starts in the background, and all that they start: commands would not end by it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

SKIPPED: Final = pytest.StashKey[int]()


@pytest.hookimpl(trylast=True)  # after -k and -m, whose tests left out are not to be counted
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests that need a GPU as skipped if there is none."""
    if GPU_DRIVER.exists():
        return
    needing = [item for item in items if item.get_closest_marker("gpu")]
    for item in needing:
        item.add_marker(pytest.mark.skip(reason=f"needs an NVIDIA GPU: there is no {GPU_DRIVER}"))
    config.stash[SKIPPED] = len(needing)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say at the end how many tests were left out for want of a GPU."""
    skipped = config.stash.get(SKIPPED, 0)
    if skipped:
        tests = "test that needs" if skipped == 1 else "tests that need"
        terminalreporter.write_line(f"No NVIDIA GPU here: skipped {skipped} {tests} one.", yellow=True)


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
