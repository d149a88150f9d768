"""The bindings that the actors on CUDA call are there, and take as many arguments: no GPU is needed to compare."""

from __future__ import annotations

import ast
import importlib
import inspect
import itertools
from typing import Any, Final, NamedTuple

from guards.pages import ROOT

LIBRARIES: Final = ROOT / "workers" / "atomr_mp_workers" / "libraries"
BINDINGS: Final = "nvmath.bindings"


class Use(NamedTuple):
    """A name of a binding that some source uses."""

    file: str
    line: int
    binding: str
    name: str
    call: ast.Call | None


def uses() -> list[Use]:
    """Return every use of a name of a binding."""
    found: list[Use] = []
    for file in sorted(LIBRARIES.rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        bindings = {
            alias.asname or alias.name: alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module == BINDINGS
            for alias in node.names
        }
        calls = {id(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in bindings:
                where = str(file.relative_to(LIBRARIES))
                found.append(Use(where, node.lineno, bindings[node.value.id], node.attr, calls.get(id(node))))
    return found


USES: Final = uses()


def fits(call: ast.Call, function: Any) -> bool:
    """Return whether a call has as many arguments as a function takes; one with a `*` at most as many."""
    parameters = inspect.signature(function).parameters.values()
    required = sum(each.default is inspect.Parameter.empty for each in parameters)
    given = sum(not isinstance(each, ast.Starred) for each in call.args) + len(call.keywords)
    starred = any(isinstance(each, ast.Starred) for each in call.args)
    return given <= len(parameters) and (starred or given >= required)


def wrong(use: Use) -> bool:
    """Return whether a name is not in its binding, or is called with another number of arguments."""
    found = getattr(importlib.import_module(f"{BINDINGS}.{use.binding}"), use.name, None)
    return found is None or not (use.call is None or isinstance(found, type) or fits(use.call, found))


def test_a_binding_that_is_used_is_there_and_takes_the_arguments() -> None:
    """By name and count: the arguments themselves are addresses and sizes."""
    assert [f"{use.file}:{use.line}: {use.binding}.{use.name}" for use in USES if wrong(use)] == []


def test_every_library_that_has_bindings_is_looked_at() -> None:
    """So that a way of importing them which this test does not see is a failure of it."""
    importing = {
        str(file.relative_to(LIBRARIES)) for file in LIBRARIES.rglob("*.py") if BINDINGS in file.read_text("utf-8")
    }
    assert {use.file for use in USES} == importing
    assert {"cublas", "cufft", "curand", "cusolverDn"} <= {use.binding for use in USES}


def test_routines_that_are_named_by_the_element_type_take_the_arguments() -> None:
    """Those that BLAS' actor looks up when it is loaded."""
    kinds: Any = importlib.import_module("atomr_mp_workers.libraries.blas.kinds")
    tree = ast.parse((LIBRARIES / "blas" / "cuda.py").read_text(encoding="utf-8"))
    compared = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            of = node.func.value
            if isinstance(of, ast.Attribute) and of.attr == "routines":
                for kind in kinds.KINDS.values():
                    if kind.routines is not None:
                        assert fits(node, getattr(kind.routines, node.func.attr)), node.func.attr
                        compared.add(node.func.attr)
    assert {"gemv", "geam", "syrk", "trsm"} <= compared


def test_routines_of_solvers_that_are_named_by_the_element_type_take_the_arguments() -> None:
    """Those of cuBLAS and cuSOLVER that the solvers' actor looks up when it is loaded."""
    kinds: Any = importlib.import_module("atomr_mp_workers.libraries.solver.kinds")
    compared = set()
    files = (LIBRARIES / "solver").glob("*.py")
    for node in itertools.chain.from_iterable(ast.walk(ast.parse(file.read_text("utf-8"))) for file in files):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name = node.func.attr
            for kind in kinds.KINDS.values():
                for routines in (kind.cublas, kind.cusolver):
                    if name in vars(routines):
                        assert fits(node, getattr(routines, name)), name
                        compared.add(name)
    assert compared == {*kinds.OF_CUBLAS, *kinds.OF_CUSOLVER}


def test_members_of_enums_are_those_of_the_binding() -> None:
    """Modules that hold nothing but what the bindings say can be imported without a GPU."""
    generators: Any = importlib.import_module("atomr_mp_workers.libraries.rng.generators")
    assert len(set(generators.TYPES.values())) == len(generators.TYPES)
