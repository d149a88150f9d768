"""Runs the tests that need a GPU and reports: what `scripts/test-gpu` does once the environment is there.

It also writes `verified.json`, unless it was told to run only some tests of a file: the requests that the tests have
vouched for, with the functions that their own tests have executed, beside earlier marks.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from atomr_mp.protocol.libraries import LIBRARIES, requests_of
from atomr_mp_workers.libraries import evidence

RECORDING: Final = Path(__file__).parent / "recording"
sys.path.append(str(RECORDING))

import executed_code  # noqa: E402 - through the line above

SHARED: Final = {
    "memory": (
        "tests.contract.memory.test_buffers::",
        "tests.contract.memory.test_large_arrays::",
        "tests.gpu.test_memory_cuda::",
    ),
    "kernels": ("tests.contract.libraries.test_kernels::", "tests.gpu.test_kernels_cuda::"),
    "program": ("tests.contract.libraries.test_program::", "tests.gpu.test_program_cuda::"),
}
"""Tests of libraries whose requests are no cases of their own."""

CASES: Final = "tests.gpu.test_actor_libraries_cuda::"
"""Begins the names of tests that are of one request each."""

DRIVER: Final = Path("/dev/nvidiactl")

TESTS: Final = (
    "tests/gpu",
    "tests/contract/memory/test_buffers.py",
    "tests/contract/memory/test_large_arrays.py",
    "tests/contract/libraries/test_layouts.py",
    "tests/contract/libraries/test_blas.py",
    "tests/contract/libraries/test_blas_lt.py",
    "tests/contract/libraries/test_fft.py",
    "tests/contract/libraries/test_rng.py",
    "tests/contract/libraries/test_tensor.py",
    "tests/contract/libraries/test_elementwise.py",
    "tests/contract/libraries/test_solver.py",
    "tests/contract/libraries/test_sparse.py",
    "tests/contract/libraries/test_program.py",
    "tests/contract/libraries/test_actor_libraries.py",
    "tests/contract/calls/test_client.py",
    "tests/contract/calls/test_map.py",
    "tests/contract/calls/test_batching.py",
    "tests/contract/calls/test_admission.py",
    "tests/contract/calls/test_examples.py",
    "tests/contract/calls/test_workers_per_gpu.py",
    "tests/contract/worlds",
    "tests/contract/project/test_embed_example.py",
    "tests/crash",
)

OF_ENGINES: Final = ("tests/contract/worlds", "tests/crash/worlds")
"""Tests that run once more over the second engine of worlds, if all run."""


def main() -> int:
    """Run the tests, print a summary, write the report; return pytest's status."""
    backend = "cuda" if DRIVER.exists() else "host"
    with tempfile.TemporaryDirectory() as folder:
        results, records = Path(folder, "results.xml"), Path(folder, "records")
        records.mkdir()
        began = time.monotonic()
        command = [sys.executable, "-m", "pytest", "-q", "--tb=short", f"--junitxml={results}", "-p", "ran_by_tests"]
        # The arguments are this script's own and a developer's, no stranger's.
        status = subprocess.run(
            [*command, *(sys.argv[1:] or TESTS)],
            env=os.environ | {"ATOMR_MP_TEST_BACKEND": backend} | recording(records),
            check=False,
        ).returncode
        report = {"backend": backend, **machine(), "seconds": round(time.monotonic() - began, 1), **counted(results)}
        if backend == "cuda" and not sys.argv[1:]:
            again = over_nccl(Path(folder, "nccl.xml"))
            status, report["nccl"] = status or again.pop("status"), again
        targets = [Path(out)] if (out := os.environ.get("OUT")) else []
        for target in targets:
            target.joinpath("gpu-tests.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
            shutil.make_archive(str(target / "records"), "gztar", records)
        executed = recorded(records)
    report["recorded"] = len(executed)
    if backend == "cuda" and all(Path(argument).exists() for argument in sys.argv[1:]):
        marks = evidence.encoded(kept(report) | verified(report, executed))
        for target in (evidence.FILE.parent, *targets):
            target.joinpath(evidence.FILE.name).write_text(marks, encoding="utf-8")
    print(json.dumps({name: value for name, value in report.items() if name != "tests"}, indent=1))
    return status


def over_nccl(results: Path) -> dict[str, Any]:
    """Run the tests of worlds over NCCL; return how they went, and pytest's status."""
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", f"--junitxml={results}", *OF_ENGINES]
    environment = os.environ | {"ATOMR_MP_TEST_BACKEND": "cuda", "ATOMR_MP_TEST_ENGINE": "nccl"}
    status = subprocess.run(command, env=environment, check=False).returncode
    found = counted(results)
    return {"status": status, **{name: value for name, value in found.items() if name != "tests"}}


def recording(folder: Path) -> dict[str, str]:
    """Return the environment in which tests are recorded."""
    tests = [CASES, *(name for library in LIBRARIES for name in files_of(library))]
    path = os.pathsep.join(filter(None, [str(RECORDING), os.environ.get("PYTHONPATH")]))
    return {
        "PYTHONPATH": path,
        executed_code.FOLDER: str(folder),
        executed_code.ROOMS: ",".join(evidence.ROOMS),
        executed_code.TESTS: ",".join(tests),
    }


class Executed(NamedTuple):
    """The functions of libraries that a test has executed."""

    ran: set[str]
    once: set[str]
    """Those of its processes that ran once, in any test or at imports."""
    ever: set[str]
    """All of its processes."""


NOTHING: Final = Executed(set(), set(), set())


def recorded(folder: Path) -> dict[str, Executed]:
    """Return the functions that each test has executed."""
    found: dict[str, Executed] = {}
    for file in folder.glob("*.jsonl"):
        lines: dict[str, set[str]] = collections.defaultdict(set)
        for line in file.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(ValueError):  # a worker was killed while it wrote
                test, names = json.loads(line)
                lines[test].update(names)
        ever = evidence.functions(lines.pop(executed_code.EVER, set()))
        once = ever - lines.pop(executed_code.AGAIN, set())
        for test, names in lines.items():
            each = found.setdefault(test, Executed(set(), set(), set()))
            for known, new in zip(each, (evidence.functions(names), once, ever), strict=True):
                known.update(new)
    return found


def verified(report: Mapping[str, Any], executed: Mapping[str, Executed]) -> dict[str, Any]:
    """Return a mark for each request on CUDA that tests have vouched for, and none has spoken against.

    Those that have its name are its own; those of its library's files speak for all requests of the library. One whose
    own test there was skipped, since a package is missing, has no mark, nor has one whose tests were not recorded.

    Args:
        report: How the tests went, and on what.
        executed: What each has executed.
    """
    name, driver, *_ = [part.strip() for part in report["gpus"][0].split(",")]
    where = {"device": name, "driver": driver, "cuda": report.get("cuda_runtime", ""), "date": report["date"]}
    passed = [test["name"] for test in report["tests"] if test["outcome"] == "passed"]
    against = [test["name"] for test in report["tests"] if test["outcome"] in {"failure", "error"}]
    skipped = [test["name"] for test in report["tests"] if test["outcome"] == "skipped"]
    marks = {}
    for library in LIBRARIES:
        shared = files_of(library)
        of_all = [test for test in passed if test.startswith(shared) and "[host" not in test]
        requests = requests_of(library)
        alike = library in SHARED or len(requests) == 1
        for request in requests:
            its_case = f"{library}.{request} "
            own = [test for test in passed if its_case in test and test.startswith(CASES)]  # others are not recorded
            vouched = bool(of_all) and bool(own or library in SHARED)
            vouched &= not any(test.startswith(shared) and f"[{request}]" in test for test in skipped)
            if not vouched or any(test.startswith(shared) or its_case in test for test in against):
                continue
            own += [test for test in of_all if alike or request in test.rpartition("[")[2].rstrip("]").split("-")]
            each = [executed.get(test, NOTHING) for test in own]
            found = [set().union(*sets) for sets in zip(*each, strict=True)]
            mark = evidence.mark(library, request, "cuda", *found, of_all=alike)
            if mark is not None and all(test in executed for test in own):
                marks[f"{library}.{request}.cuda"] = where | mark
            else:
                print(f"test-gpu: {library}.{request} has no mark: what its tests executed was not recorded")
    return marks


def kept(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the earlier marks of libraries without a test in this run."""
    tested = {
        library
        for library in LIBRARIES
        if any(test["name"].startswith(files_of(library)) or f"[{library}." in test["name"] for test in report["tests"])
    }
    return {name: mark for name, mark in evidence.marks(evidence.FILE).items() if name.partition(".")[0] not in tested}


def files_of(library: str) -> tuple[str, ...]:
    """Return how the names of tests begin that speak for a whole library."""
    return SHARED.get(library, (f"tests.gpu.test_{library}_cuda::",))


def machine() -> dict[str, Any]:
    """Return the machine that the tests ran on."""
    found: dict[str, Any] = {"date": time.strftime("%Y-%m-%d", time.gmtime()), "python": platform.python_version()}
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return found
    found["gpus"] = [line.strip() for line in answer.splitlines()]
    versions = "import cupy; print(cupy.__version__, cupy.cuda.runtime.runtimeGetVersion())"
    answer = subprocess.run([sys.executable, "-c", versions], capture_output=True, text=True, check=False).stdout
    if len(answer.split()) == 2:
        found["cupy"], found["cuda_runtime"] = answer.split()
    return found


def counted(results: Path) -> dict[str, Any]:
    """Return how the tests went, each with its outcome and time."""
    if not results.exists():
        return {}
    tests = []
    for case in ET.parse(results).getroot().iter("testcase"):
        outcome = next((each.tag for each in case if each.tag in {"failure", "error", "skipped"}), "passed")
        seconds = round(float(case.get("time", 0)), 3)
        tests.append({"name": f"{case.get('classname')}::{case.get('name')}", "outcome": outcome, "seconds": seconds})
    outcomes = [test["outcome"] for test in tests]
    failed = [test["name"] for test in tests if test["outcome"] in {"failure", "error"}]
    return {
        **{outcome: outcomes.count(outcome) for outcome in ("passed", "failure", "error", "skipped")},
        "failed": failed,
        "tests": tests,
    }


if __name__ == "__main__":
    raise SystemExit(main())
