from __future__ import annotations

import ast
import importlib.util
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from atomr_mp.protocol.libraries import LIBRARIES, requests_of
from atomr_mp_workers.libraries import code_parts, evidence
from atomr_mp_workers.libraries.code_parts import ModuleCode

ROOT: Final = Path(__file__).parents[3]
ON: Final = {"date": "2026-11-24", "gpus": ["NVIDIA H200, 580.159.03, 143771 MiB"], "cuda_runtime": "13020"}

PROTOCOL: Final = "atomr_mp.protocol.libraries"
ACTORS: Final = "atomr_mp_workers.libraries"
CASES: Final = (
    "tests/pure/requests/test_actor_libraries.py::test_every_request_gives_in_an_actor_what_it_gives_by_message"
)
PROGRAM: Final = (
    "tests/contract/libraries/test_program.py::test_an_iteration_fits_into_a_program[host-by the stream's thread]"
)
REQUESTS: Final = ("blas.axpy", "blas.gemm", "elementwise.add", "elementwise.sqrt")

ALL: Final = set(REQUESTS)
CHANGED: Final = 1
"""Executed functions of a module that are changed."""

Change = Callable[[str, str], None]
"""Has a module read with another source."""


def script() -> Any:
    """Return the script that runs the tests on a GPU."""
    spec = importlib.util.spec_from_file_location("test_gpu_script", ROOT / "scripts" / "test_gpu.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def report() -> Any:
    """The script that runs the tests on a GPU."""
    return script()


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What tests of some requests on the host, and one of programs through a pool, have executed."""
    there, folder = script(), tmp_path_factory.mktemp("records")
    there.CASES = "tests.pure.requests.test_actor_libraries::"
    wanted = [f"{CASES}[{name} directly]" for name in REQUESTS] + [PROGRAM]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "ran_by_tests", *wanted],
        env=environment | there.recording(folder),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found: dict[str, Any] = there.recorded(folder)
    return found


@pytest.fixture(scope="module")
def marks(executed: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The marks of those requests."""
    found = {}
    for name in REQUESTS:
        (each,) = (each for test, each in executed.items() if f"[{name} " in test)
        library, request = name.split(".")
        mark = evidence.mark(library, request, "host", *each)
        assert mark is not None, name
        found[name] = mark
    return found


@pytest.fixture
def change(monkeypatch: pytest.MonkeyPatch) -> Change:
    """Has a module read with another source, until the end of the test."""
    read = code_parts.parts
    changed: dict[str, ModuleCode] = {}

    def to(module: str, text: str) -> None:
        changed[module] = ModuleCode(module, text)

    monkeypatch.setattr(evidence, "parts", lambda module: changed.get(module) or read(module))
    return to


def holding(marks: dict[str, dict[str, Any]]) -> set[str]:
    """Return the requests whose marks hold."""
    found = set()
    for name, mark in marks.items():
        library, request = name.split(".")
        if evidence.digest(library, request, "host", mark["ran"]) == mark["digest"]:
            found.add(name)
    return found


def source(module: str) -> str:
    """Return a module's source."""
    text = code_parts.source(module)
    assert text is not None
    return text


def went(**outcomes: str) -> dict[str, Any]:
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


def verified(report: Any, vouched: dict[str, Any]) -> set[str]:
    """Return which requests have a mark; of each test was recorded that it executed a function of its library."""
    functions = {f"{ACTORS}.blas.cuda:_vector", f"{ACTORS}.program.base:ProgramLibrary.run"}
    executed = {test["name"]: report.Executed(functions, functions, functions) for test in vouched["tests"]}
    return set(report.verified(vouched, executed))


def test_a_request_whose_own_test_was_skipped_is_not_verified(report: Any) -> None:
    """A package that it needs is missing; elsewhere it was only refused, or had nothing to do."""
    passed = {"case": "passed", "other_case": "passed", "file": "passed"}
    assert verified(report, went(**passed, own="skipped")) == {"blas.axpy.cuda"}
    assert verified(report, went(**passed, own="passed")) == {"blas.axpy.cuda", "blas.gemm.cuda"}


def test_a_request_is_verified_by_its_own_case_and_its_librarys_tests(report: Any) -> None:
    """And no test that speaks for it has failed."""
    vouched = went(case="passed", in_program="passed", file="passed", other_case="failure")
    assert verified(report, vouched) == {"blas.gemm.cuda"}
    assert not verified(report, went(case="passed"))
    assert not verified(report, went(file="passed"))
    assert not verified(report, went(case="skipped", file="passed"))
    assert not verified(report, went(case="passed", in_program="failure", file="passed"))
    assert not verified(report, went(case="passed", file="error"))
    assert verified(report, went(program="passed", on_host="passed")) == {"program.run.cuda"}


def test_a_request_whose_tests_were_not_recorded_has_no_mark(report: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The script says which."""
    vouched = went(case="passed", file="passed")
    ran = {f"{ACTORS}.blas.cuda:_vector"}
    executed = {test["name"]: report.Executed(ran, set(), ran) for test in vouched["tests"]}
    (mark,) = report.verified(vouched, executed).values()
    where = {"device": "NVIDIA H200", "driver": "580.159.03", "cuda": "13020", "date": "2026-11-24"}
    assert mark == where | {"ran": sorted(ran), "digest": mark["digest"]}
    assert not capsys.readouterr().out
    for nothing in (
        {},
        dict.fromkeys(executed, report.NOTHING),
        {vouched["tests"][1]["name"]: next(iter(executed.values()))},
    ):
        assert not report.verified(vouched, nothing)
        assert "blas.gemm has no mark" in capsys.readouterr().out


def test_earlier_marks_stay_of_what_was_not_tested(
    report: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tested requests have the marks of this run, and no others."""
    file = tmp_path / "verified.json"
    file.write_text(evidence.encoded({"blas.gemm.cuda": {"ran": []}, "fft.transform.cuda": {"ran": ["module:name"]}}))
    monkeypatch.setattr(report.evidence, "FILE", file)
    assert report.kept(went(case="failure")) == {"fft.transform.cuda": {"ran": ["module:name"]}}


def test_every_executed_function_drops_a_mark_and_no_other_does(
    marks: dict[str, dict[str, Any]], change: Change
) -> None:
    """In all modules that tests have come to; of the executed ones a few are changed, one after another."""
    modules = sorted({each.partition(":")[0] for mark in marks.values() for each in mark["ran"]})
    assert {f"{ACTORS}.blas.host", f"{ACTORS}.elementwise.base", f"{PROTOCOL}.base", f"{ACTORS}.method"} <= set(modules)
    for module in modules:
        text = source(module)
        tree = ast.parse(text)
        functions = {f"{module}:{node.name}": node for node in tree.body if isinstance(node, ast.FunctionDef)}
        for cls in (node for node in tree.body if isinstance(node, ast.ClassDef)):
            within = (node for node in cls.body if isinstance(node, ast.FunctionDef))
            functions |= {f"{module}:{cls.name}.{node.name}": node for node in within}
        executed = [key for key in functions if any(key in mark["ran"] for mark in marks.values())]
        for key in random.Random(module).sample(executed, min(CHANGED, len(executed))):
            functions[key].body.append(ast.Pass())
            change(module, ast.unparse(tree))
            assert holding(marks) == {name for name, mark in marks.items() if key not in mark["ran"]}, key
            functions[key].body.pop()
        for key in functions.keys() - set(executed):
            functions[key].body.append(ast.Pass())
        change(module, ast.unparse(tree))
        assert holding(marks) == ALL
        change(module, text)


OF_ELEMENTWISE: Final = {"elementwise.add", "elementwise.sqrt"}


@pytest.mark.parametrize(
    ("module", "old", "new", "dropped"),
    [
        pytest.param(
            "elementwise",
            'name: ClassVar = "add"\n',
            'name: ClassVar = "add"\n    answers: ClassVar = True\n',
            {"elementwise.add"},
            id="its declaration",
        ),
        pytest.param("elementwise", "class Add(_OfTwo", "class Add(_Comparison", {"elementwise.add"}, id="its base"),
        pytest.param(
            "elementwise",
            'writes("*dims", alias=("x",))',
            'writes("*dims")',
            {"elementwise.sqrt"},
            id="a field of its base",
        ),
        pytest.param(
            "elementwise",
            "class Subtract(_OfTwo, frozen=True):",
            "class Subtract(_Comparison, frozen=True):",
            set(),
            id="another request's base",
        ),
        pytest.param(
            "elementwise", 'ANY = ("bool", *NUMERIC)', 'ANY = ("bool",)', set(), id="another request's constant"
        ),
        pytest.param(
            "elementwise",
            "INEXACT = (*HALF, *REAL, *COMPLEX)",
            "INEXACT = (*HALF, *REAL)",
            {"elementwise.sqrt"},
            id="its constant",
        ),
        pytest.param(
            "elementwise",
            "NUMERIC = (*ORDERED, *COMPLEX)",
            "NUMERIC = ORDERED",
            {"elementwise.add"},
            id="a constant of a constant",
        ),
        pytest.param(
            "base",
            'HALF: Final = ("float16", "bfloat16")',
            'HALF: Final = ("float16",)',
            ALL,
            id="a constant of another module",
        ),
        pytest.param(
            "blas",
            'x: Annotated[Operand, reads("n", lies=vector, factor="alpha")]',
            'x: Annotated[Operand, reads("n")]',
            {"blas.axpy"},
            id="its field",
        ),
    ],
)
def test_a_declaration_counts_for_what_is_made_of_it(
    marks: dict[str, dict[str, Any]], change: Change, module: str, old: str, new: str, dropped: set[str]
) -> None:
    """Requests, their bases, and the constants that they name."""
    text = source(f"{PROTOCOL}.{module}")
    assert old in text
    change(f"{PROTOCOL}.{module}", text.replace(old, new))
    assert holding(marks) == ALL - dropped


EXP: Final = '''

MORE = (*INEXACT, "float8")


class Exp(_OfOne, frozen=True):
    """Compute the exponential."""

    name: ClassVar = "exp"
    types: ClassVar = {"T": MORE}
'''


def test_a_new_request_keeps_all_marks(marks: dict[str, dict[str, Any]], change: Change) -> None:
    """Its declaration, its method, its name beside others', its entries in tables, what it needs."""
    before = code_parts.requests_named("elementwise")
    change(
        f"{PROTOCOL}.elementwise", source(f"{PROTOCOL}.elementwise").replace("import math", "import math, cmath") + EXP
    )
    base = source(f"{ACTORS}.elementwise.base")
    base = base.replace("negative = sqrt", "negative = exp = sqrt") + "\n\ndef _clipped(x: Any) -> Any:\n    return x\n"
    host = source(f"{ACTORS}.elementwise.host").replace('{"negative"}', '{"exp", "negative"}')
    generated = "atomr_mp.libraries.generated.elementwise"
    method = "\n    def exp(self, x: Operand) -> Reply:\n        return self._request(elementwise.Exp(x=x), None)\n"
    with pytest.MonkeyPatch.context() as patch:
        named = {**before, "Exp": "exp"}
        for room in (evidence, code_parts):
            patch.setattr(room, "requests_named", lambda library: named if library == "elementwise" else {})
        change(f"{ACTORS}.elementwise.base", base)
        change(f"{ACTORS}.elementwise.host", host)
        change(generated, source(generated) + method)
        assert holding(marks) >= OF_ELEMENTWISE


def test_a_new_request_beside_others_keeps_the_marks_of_other_libraries(
    monkeypatch: pytest.MonkeyPatch, change: Change
) -> None:
    """Those of memory and of programs, whose tests use classes of other libraries: a new name there is not theirs."""
    named = code_parts.requests_named
    text = source(f"{ACTORS}.elementwise.base")
    assert "negative = sqrt" in text
    others = {name: mark["ran"] for name, mark in evidence.marks().items() if not name.startswith("elementwise.")}
    assert {"memory", "program"} <= {name.partition(".")[0] for name in others}

    def digests() -> dict[str, str | None]:
        found = {}
        for name, ran in others.items():
            library, request, backend = name.split(".")
            found[name] = evidence.digest(library, request, backend, ran)
        return found

    def with_new(library: str) -> dict[str, str]:
        return {**named(library), **({"New": "unheard"} if library == "elementwise" else {})}

    before = digests()
    for room in (evidence, code_parts):
        monkeypatch.setattr(room, "requests_named", with_new)
    change(f"{ACTORS}.elementwise.base", text.replace("negative = sqrt", "negative = unheard = sqrt"))
    assert digests() == before


def test_a_method_that_stands_for_an_executed_one_drops_marks(marks: dict[str, dict[str, Any]], change: Change) -> None:
    """It would be executed in its place."""
    text = source(f"{ACTORS}.elementwise.host")
    added = "    module = np\n\n    def _two(self, request: Any) -> None:\n        pass\n"
    change(f"{ACTORS}.elementwise.host", text.replace("    module = np\n", added))
    assert holding(marks) == ALL - {"elementwise.add"}
    change(f"{ACTORS}.elementwise.host", text.replace("    module = np\n", added.replace("_two", "_three")))
    assert holding(marks) == ALL


def test_requests_are_known_by_their_source() -> None:
    """As by their classes, which are not imported for it."""
    for library in LIBRARIES:
        named = {cls.__name__: name for name, cls in requests_of(library).items()}
        assert code_parts.requests_named(library) == named


def test_what_ran_before_counts_for_all_that_use_it(marks: dict[str, dict[str, Any]]) -> None:
    """A library's actor is made once for all of its requests; what runs in another's test alone does not count."""
    for name in ("blas.axpy", "blas.gemm"):
        assert f"{ACTORS}.base:Library.__init__" in marks[name]["ran"]
    assert f"{ACTORS}.blas.host:HostBlas.gemm" not in marks["blas.axpy"]["ran"]


def test_what_runs_in_a_pools_worker_is_recorded(executed: dict[str, Any]) -> None:
    """Under the test that has started the pool."""
    ((_, there),) = ((test, each) for test, each in executed.items() if "iteration_fits" in test)
    assert f"{ACTORS}.method:LibraryMethod.arguments" in there.ran  # which decodes a message


def test_marks_are_read_as_they_were_written(marks: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    """A mark holds until its code changes; of others there is none."""
    file = tmp_path / "verified.json"
    on = {"device": "NVIDIA H200", "driver": "1", "date": "2026-11-24"}
    file.write_text(evidence.encoded({f"{name}.host": on | mark for name, mark in marks.items()}))
    assert evidence.marks(file) == {f"{name}.host": on | mark for name, mark in marks.items()}
    gemm = evidence.verified("blas", "gemm", "host", file)
    assert gemm == on | {"digest": marks["blas.gemm"]["digest"]}
    assert evidence.verified("blas", "dot", "host", file) is None
    assert evidence.verified("blas", "gemm", "host", tmp_path / "none.json") is None
    missing = {"ran": [*marks["blas.gemm"]["ran"], "atomr_mp.protocol.dtypes:gone"], "digest": ""}
    file.write_text(evidence.encoded({"blas.gemm.host": on | missing}))
    assert evidence.verified("blas", "gemm", "host", file) is None


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


def text_of(source: str) -> list[str]:
    """Return what a digest is of, for a whole module."""
    return [f"{part.key} {part.text}" for part in ModuleCode("module", source).all]


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
    assert text_of(CODE.replace(old, new)) == text_of(CODE)


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
    assert text_of(CODE.replace(old, new)) != text_of(CODE)
