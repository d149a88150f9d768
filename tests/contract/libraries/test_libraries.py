"""The support matrix, as the command line shows it."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from typing import Any

import pytest

from atomr_mp.protocol.libraries import LIBRARIES, requests_of
from atomr_mp.protocol.libraries.base import element_types
from tests.in_turn import in_turn


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    """The matrix."""
    command = [sys.executable, "-m", "atomr_mp.cli", "libraries", "--json"]
    found: list[dict[str, Any]] = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return found


@in_turn("library, on", itertools.product(LIBRARIES, ("host", "cuda")))
def test_every_request_is_shown_for_every_backend_whatever_is_installed(
    rows: list[dict[str, Any]], library: str, on: str
) -> None:
    """The code says what it provides; no CUDA is needed to ask."""
    shown = {row["request"]: row["dtypes"] for row in rows if (row["library"], row["backend"]) == (library, on)}
    assert shown == {name: element_types(request) for name, request in requests_of(library).items()}


def test_asking_loads_no_library() -> None:
    """Neither CUDA nor SciPy: the command answers at once."""
    program = (
        "import runpy, sys; from atomr_mp_workers.libraries import evidence; evidence.marks = lambda _file: {}; "
        "runpy.run_module('atomr_mp_workers.libraries', run_name='__main__'); "
        "print([name for name in ('cupy', 'nvmath', 'scipy') if getattr(sys.modules.get(name), '__file__', None)], "
        "file=sys.stderr)"
    )
    asked = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert asked.stderr.strip() == "[]"
