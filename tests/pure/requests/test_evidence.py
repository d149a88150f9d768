from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from atomr_mp.protocol.libraries import LIBRARIES, requests_of
from atomr_mp_workers.libraries import evidence

ROOT: Final = Path(__file__).parents[3]
ON: Final = {"date": "2026-11-24", "gpus": ["NVIDIA H200, 580.159.03, 143771 MiB"], "cuda_runtime": "13020"}


@pytest.fixture
def report() -> Any:
    """The script that runs the tests on a GPU."""
    spec = importlib.util.spec_from_file_location("test_gpu_script", ROOT / "scripts" / "test_gpu.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with what a digest is of, to be changed."""
    for file in set(evidence.files("blas", "cuda").values()):
        folder = next(each for each in evidence.FOLDERS if file.is_relative_to(each))
        copy = tmp_path / file.relative_to(folder)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(file.read_bytes())
    monkeypatch.setattr(evidence, "FOLDERS", (tmp_path,))
    evidence.digest.cache_clear()
    yield tmp_path
    evidence.digest.cache_clear()


def ran(**outcomes: str) -> dict[str, Any]:
    """Return a report of tests; their names are those of files and requests."""
    names = {
        "case": "tests.gpu.test_actor_libraries_cuda::test_every_request[blas.gemm directly]",
        "in_program": "tests.gpu.test_actor_libraries_cuda::test_every_request[blas.gemm in a program]",
        "other_case": "tests.gpu.test_actor_libraries_cuda::test_every_request[blas.axpy directly]",
        "file": "tests.gpu.test_blas_cuda::test_nrm2_does_not_overflow",
        "own": "tests.gpu.test_blas_cuda::test_results_are_right[gemm]",
        "program": "tests.gpu.test_program_cuda::test_runs_overlap",
        "on_host": "tests.contract.memory.test_buffers::test_x[host]",
    }
    return ON | {"tests": [{"name": names[name], "outcome": outcome} for name, outcome in outcomes.items()]}


def test_a_request_whose_own_test_was_skipped_is_not_verified(report: Any) -> None:
    """A package that it needs is missing; elsewhere it was only refused, or had nothing to do."""
    passed = {"case": "passed", "other_case": "passed", "file": "passed"}
    assert set(report.verified(ran(**passed, own="skipped"))) == {"blas.axpy.cuda"}
    assert set(report.verified(ran(**passed, own="passed"))) == {"blas.axpy.cuda", "blas.gemm.cuda"}


def test_a_request_is_verified_by_its_own_case_and_its_librarys_tests(report: Any) -> None:
    """And no test that speaks for it has failed."""
    found = report.verified(ran(case="passed", in_program="passed", file="passed", other_case="failure"))
    assert set(found) == {"blas.gemm.cuda"}
    assert found["blas.gemm.cuda"] | {"digest": ""} == {
        "device": "NVIDIA H200",
        "driver": "580.159.03",
        "cuda": "13020",
        "date": "2026-11-24",
        "digest": "",
    }
    assert not report.verified(ran(case="passed"))
    assert not report.verified(ran(file="passed"))
    assert not report.verified(ran(case="skipped", file="passed"))
    assert not report.verified(ran(case="passed", in_program="failure", file="passed"))
    assert not report.verified(ran(case="passed", file="error"))
    assert set(report.verified(ran(program="passed", on_host="passed"))) == {"program.run.cuda"}


def test_earlier_marks_stay_of_what_was_not_tested(
    report: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tested requests have the marks of this run, and no others."""
    file = tmp_path / "verified.json"
    file.write_text(json.dumps({"blas.gemm.cuda": {}, "fft.transform.cuda": {}}))
    monkeypatch.setattr(report.evidence, "FILE", file)
    assert set(report.kept(ran(case="failure"))) == {"fft.transform.cuda"}


def test_a_mark_holds_as_long_as_the_code_is_what_it_was(sources: Path, tmp_path: Path) -> None:
    """Of the library on that backend, and of what it shares with others."""
    file = tmp_path / "verified.json"
    mark = {"device": "NVIDIA H200", "driver": "1", "date": "2026-11-24", "digest": evidence.digest("blas", "cuda")}
    file.write_text(json.dumps({"blas.gemm.cuda": mark}))
    assert evidence.verified("blas", "gemm", "cuda", file) == mark
    assert evidence.verified("blas", "axpy", "cuda", file) is None
    assert evidence.verified("blas", "gemm", "cuda", tmp_path / "none.json") is None
    for changed in ("atomr_mp_workers/libraries/slots.py", "atomr_mp/protocol/declaration/checks.py"):
        before = (sources / changed).read_text()
        for text, held in ((before + "# changed\n", mark), (before + "CHANGED = 1\n", None), (before, mark)):
            (sources / changed).write_text(text)
            evidence.digest.cache_clear()
            assert evidence.verified("blas", "gemm", "cuda", file) == held


CODE: Final = '''"""A module."""

# Adds.
def add(a: int) -> str:
    """Add.

    Really.
    """
    text = f"""{a}

    # no comment {"x"}
    """
    return text + "é" * 2  # "twice"


X = 1
"""One."""
Y = ("a"
  "b")
'''


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"""A module."""\n\n# Adds.', '"""Another."""'),
        ("    Really.\n", "    Really so.\n\n    And more.\n"),
        ('    """Add.\n\n    Really.\n    """\n', ""),
        ('  # "twice"', ""),
        ('"""One."""', '"""Only one."""  # "or two"'),
        ("\n\nX = 1", "\nX = 1"),
    ],
)
def test_words_do_not_change_a_digest(old: str, new: str) -> None:
    """Docstrings, comments and blank lines are left out."""
    assert old in CODE
    assert evidence.code(CODE.replace(old, new)) == evidence.code(CODE)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("X = 1", "X = 2"),
        ("text + ", "text * "),
        ("# no comment", "# a comment"),
        ("{a}\n\n", "{a}\n"),
        ("{a}\n", "{a} \n"),
        ('"é"', '"e"'),
        ("    return", "    if a:\n        return"),
        ('"b")', '"c")'),
    ],
)
def test_code_changes_a_digest(old: str, new: str) -> None:
    """Constants, operators and the content of strings, their white space too."""
    assert old in CODE
    assert evidence.code(CODE.replace(old, new)) != evidence.code(CODE)


def test_a_mark_vouches_for_all_that_a_library_is_made_of() -> None:
    """Its requests, its actor, and the modules of its own room that it imports."""
    for library in LIBRARIES:
        assert requests_of(library)
        files = evidence.files(library, "cuda")
        assert {f"atomr_mp.protocol.libraries.{library}", f"atomr_mp_workers.libraries.{library}.cuda"} <= set(files)
        room = f"atomr_mp_workers.libraries.{library}."
        folder = files[f"{room}cuda"].parent
        own = {path.stem for path in folder.glob("*.py")} - {"__init__", "host"}
        missing = own - {name.removeprefix(room) for name in files if name.startswith(room)}
        assert not {name for name in missing if name not in _of_the_host(folder)}, library


def _of_the_host(folder: Path) -> str:
    """Return what the host's actor imports."""
    return (folder / "host.py").read_text()
