from __future__ import annotations

from pathlib import Path

import hypothesis
import pytest
from hypothesis import strategies as st

from atomr_mp.serve.parent.saved_files import Saves, files_of

FILE = Path("file.py")


@hypothesis.given(st.lists(st.integers(0, 2), max_size=30))
def test_saves_that_follow_each_other_are_one_reload(looks: list[int]) -> None:
    """Whatever is seen, the code that runs is that of the last rest; nothing is loaded twice, or while it changes."""
    saves, loaded = Saves({FILE: (0,)}), 0
    for before, now in zip([0, *looks], looks, strict=False):
        reload = saves.look({FILE: (now,)})
        assert reload == (before == now != loaded)
        if reload:
            loaded = now


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with actors, which is the current one."""
    for name, text in {
        "actors.py": "import json, beside\nfrom package import part\nimport package.deep.inner as x\nimport actors",
        "beside.py": "def late():\n    from lazy import thing",
        "lazy.py": "import (",
        "other.py": "",
        "package/__init__.py": "from . import sibling\nfrom ........ import beyond",
        "package/part.py": "from .deep import inner",
        "package/sibling.py": "\0",
        "package/unused.py": "",
        "package/deep/__init__.py": "",
        "package/deep/inner.py": "from ..part import x\nfrom ... import other",
    }.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("target", ["actors.py:A", "N=actors.py:A", "{}/actors.py:A", "actors:A", "M={}/actors:A"])
def test_the_files_of_an_actor_are_those_that_it_imports_from_its_folder(folder: Path, target: str) -> None:
    """Also inside functions and packages, and in a circle; a file that is broken has no imports."""
    found = {str(file.relative_to(folder)) for file in files_of([target.format(folder)])}
    assert found == {
        *("actors.py", "beside.py", "lazy.py", "other.py"),
        *("package/__init__.py", "package/part.py", "package/sibling.py"),
        *("package/deep/__init__.py", "package/deep/inner.py"),
    }


def test_an_actor_that_is_not_there_has_no_files(folder: Path) -> None:
    """It may come later."""
    assert files_of([f"{folder}/missing.py:A", "installed.package:B", "", ":", "/x.py:C"]) == set()
