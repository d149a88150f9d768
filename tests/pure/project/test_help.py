"""`help` shows every public name."""

from __future__ import annotations

import pydoc

import pytest

import atomr_mp
import atomr_mp_workers

NAMES = [(module, name) for module in (atomr_mp, atomr_mp_workers) for name in module.__all__]


@pytest.mark.parametrize(("module", "name"), NAMES, ids=[f"{module.__name__}.{name}" for module, name in NAMES])
def test_each_is_shown(module: object, name: str) -> None:
    """Its annotations can be looked up, which `help` does for fields."""
    shown = pydoc.render_doc(getattr(module, name), renderer=pydoc.plaintext)  # type: ignore[attr-defined]
    assert name in shown
