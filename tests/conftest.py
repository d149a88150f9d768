"""Configuration of all tests: what is skipped here, such as what needs a GPU, and how skips are counted."""

from __future__ import annotations

import collections
import contextlib
import gc
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import hypothesis
import pytest

# Before this package is imported, which decides then; all processes of the tests inherit it.
CHECKS: Final = os.environ.setdefault("ATOMR_MP_CHECKS", "1")
# OpenBLAS's threads would spin while a process imports NumPy, end at a fork and return while a ledger counts.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import atomr_mp  # noqa: E402
from tests import suites  # noqa: E402
from tests.support import BACKEND, Ledger, client_of, settled  # noqa: E402

# The driver's own device file. Asking it this way loads no CUDA library into the process that runs the tests.
GPU_DRIVER: Final = Path("/dev/nvidiactl")
# A busy machine is no failure: what must not take long has a timeout of its own. Where tests share the cores, a failure
# has the example that was found: making it smaller may take longer than a test's limit, and then nothing is shown.
SHARED: Final = "PYTEST_XDIST_WORKER" in os.environ
PHASES: Final = [each for each in hypothesis.Phase if not (SHARED and each.name in {"shrink", "explain"})]
hypothesis.settings.register_profile("all", deadline=None, phases=PHASES, print_blob=True)
hypothesis.settings.register_profile("atomr-mp", hypothesis.settings.get_profile("all"), max_examples=50)
hypothesis.settings.register_profile(
    "quick", hypothesis.settings.get_profile("all"), max_examples=15, stateful_step_count=20
)
hypothesis.settings.load_profile("atomr-mp")
# A shell has those ignore it that it starts in the background, and all that they start: commands would not end by it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of `scripts/test --all`."""
    parser.addoption("--all", action="store_true", help="run all suites and all breakages; note which suites pass")


def pytest_configure(config: pytest.Config) -> None:
    """With `--all`, read the suites' files before a test runs: an edit from then on has not been tested."""
    if config.getoption("all"):
        os.environ["ATOMR_MP_TEST_BREAKAGES"] = "all"
        hypothesis.settings.load_profile("all")
        selects = any(config.getoption(name, None) for name in ("keyword", "markexpr", "deselect", "lf"))
        if not (selects or hasattr(config, "workerinput") or any("::" in each for each in config.args)):
            config.pluginmanager.register(_Noting(suites.digests()))


class _Noting:
    """Notes which suites pass.

    Args:
        before: The suites' digests before the tests.
    """

    def __init__(self, before: Mapping[str, str]) -> None:
        self._before: Final = before
        self._outcomes: Final[dict[str, set[str]]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep a test's outcome, also one from another process of pytest."""
        suite = report.nodeid.partition("::")[0]
        if suite in suites.SUITES and (report.when == "call" or not report.passed):
            self._outcomes.setdefault(suite, set()).add(report.outcome)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Keep that for the next run. A suite that was skipped, if only in part, has not passed."""
        if not session.shouldfail and not session.shouldstop:
            passed = [suite for suite, outcomes in self._outcomes.items() if outcomes == {"passed"}]
            failed = [suite for suite, outcomes in self._outcomes.items() if "failed" in outcomes]
            suites.note(passed, failed, self._before)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the suites that have passed as they are."""
    suite = collection_path.is_relative_to(suites.ROOT) and str(collection_path.relative_to(suites.ROOT))
    return True if suite in suites.SUITES and suite in _left_out(config) else None


def _left_out(config: pytest.Config) -> list[str]:
    """Return the suites in the folders under test that have passed as they are; none if it was asked for."""
    if config.getoption("all"):
        return []
    asked = [config.invocation_params.dir / each.partition("::")[0] for each in config.args]
    paths = {suite: suites.ROOT / suite for suite in suites.SUITES}
    within = [suite for suite, path in paths.items() if path not in asked and not set(asked).isdisjoint(path.parents)]
    return [suite for suite in within if suite in suites.unchanged()]


@pytest.hookimpl(trylast=True)  # after -k and -m, whose tests left out are not to be counted
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests that need a GPU as skipped if there is none, and those at random where not all are run."""
    if not config.getoption("all"):
        for item in items:
            if item.get_closest_marker("at_random"):
                item.add_marker(pytest.mark.skip(reason="does other work each time, and runs with scripts/test --all"))
    if not GPU_DRIVER.exists():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason=f"needs an NVIDIA GPU: there is no {GPU_DRIVER}"))


def pytest_collection_finish() -> None:
    """Let the collector pass over what will live to the end: thousands of tests, and the modules that they use.

    Else each collection looks at all of them, which takes a third of a second; many tests ask for one.
    """
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say at the end how many tests were skipped, a line for each reason, and how many suites were left out."""
    counts = collections.Counter(_reason(report) for report in terminalreporter.stats.get("skipped", []))
    for reason, count in counts.most_common():
        terminalreporter.write_line(f"skipped {count}: {reason}", yellow=True)
    if left_out := _left_out(config):
        words = f"left out {len(left_out)}: long suites that have passed as they are; scripts/test --all runs them"
        terminalreporter.write_line(words, yellow=True)


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


@pytest.fixture(scope="module", autouse=True)
def threads_end(cuda_is_here: None) -> Iterator[None]:
    """Let no thread outlive the file that has begun it: later tests would meet its work and its faults."""
    del cuda_is_here  # its threads are the process's own
    before = set(threading.enumerate())
    yield

    def left() -> list[str]:
        ours = [each for each in threading.enumerate() if each not in before and not _lives_on(each)]
        return [each.name for each in ours]

    assert settled(lambda: not left()), f"threads are left: {left()}"


def _lives_on(thread: threading.Thread) -> bool:
    """Return whether a thread is a test's limit, or one of those that a worker has until its process ends."""
    runs = getattr(thread, "_target", None) or getattr(thread, "function", None)
    return thread.name.startswith("pytest_timeout ") or getattr(runs, "__module__", "").startswith("atomr_mp_workers.")


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    """Where a test's pools are started; checks afterwards that nothing of them is left."""
    with Ledger() as counting:
        yield counting


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Collect no garbage during a test."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def pool(shared: atomr_mp.Pool, ledger: Ledger) -> Iterator[atomr_mp.Pool]:
    """A client without a history of the pool that a file's tests share; nothing may be left of it.

    A file whose tests share something else has its own fixture of this name.
    """
    del ledger  # it only counts
    with client_of(shared) as own:
        yield own
