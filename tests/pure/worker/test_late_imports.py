"""Imports of an actor's code, long after it was loaded: which of them are refused."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from atomr_mp_workers.code_digest import code_of
from atomr_mp_workers.late_imports import LateImports

MAIN = "class A:\n    def f(self):\n        import late_helper\n        from late_folder import late_deep\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An actor's folder, which imports look into, and whose actor was loaded."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "late_main.py").write_text(MAIN)
    (tmp_path / "late_helper.py").write_text("K = 1\n")
    (tmp_path / "late_folder").mkdir()
    (tmp_path / "late_folder" / "late_deep.py").write_text("K = 1\n")
    (tmp_path / "late_named.py").write_text("K = 1\n")
    checks = LateImports()
    before = list(sys.meta_path)
    _until_dated_later(tmp_path)
    checks.check("A", code_of(importlib.import_module("late_main").A))
    _until_dated_later(tmp_path)
    yield tmp_path
    checks.stop()
    assert sys.meta_path == before
    for name in [name for name in sys.modules if name.startswith("late_")]:
        del sys.modules[name]


def _until_dated_later(folder: Path) -> None:
    """Wait for the clock of files, which is coarse: what is written from now on is dated later than what was."""
    mark = folder / "mark"
    mark.write_text("")
    begun_ns = mark.stat().st_ctime_ns
    while mark.stat().st_ctime_ns == begun_ns:
        mark.write_text("")


def _imported(name: str) -> int:
    importlib.invalidate_caches()
    found: int = importlib.import_module(name).K
    return found


def _edited(file: Path) -> None:
    file.write_text("K = 2\n")


def _replaced(file: Path, text: str = "K = 2\n") -> None:
    new = file.with_suffix(".new")
    new.write_text(text)
    os.utime(new, ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns))
    new.rename(file)


@pytest.mark.parametrize("change", [_edited, _replaced])
@pytest.mark.parametrize("name", ["late_helper", "late_folder.late_deep", "late_named"])
def test_what_has_changed_is_refused(folder: Path, name: str, change: Callable[[Path], None]) -> None:
    """Whether the digest covers it or it is named at run time; also with the time and size that it had."""
    change(folder / f"{name.replace('.', '/')}.py")
    with pytest.raises(ImportError, match=r"has changed since .* the actor A, .* reload the pool") as raised:
        _imported(name)
    assert raised.value.name == name
    assert raised.value.path == str(folder / f"{name.replace('.', '/')}.py")


@pytest.mark.parametrize("name", ["late_helper", "late_folder.late_deep", "late_named"])
def test_what_has_not_changed_is_imported(folder: Path, name: str) -> None:
    """Each import works as without the checks."""
    assert folder.is_dir()
    assert _imported(name) == 1


@pytest.mark.parametrize("how", ["touched", "written"])
def test_what_has_the_same_text_is_imported(folder: Path, how: str) -> None:
    """A file's time alone says nothing."""
    file = folder / "late_helper.py"
    file.touch() if how == "touched" else _replaced(file, "K = 1\n")
    assert _imported("late_helper") == 1


def test_a_module_that_appears_later_is_refused(folder: Path) -> None:
    """Other members have not had it."""
    (folder / "late_named.py").unlink()
    (folder / "late_named").mkdir()
    (folder / "late_named" / "__init__.py").write_text("K = 2\n")
    with pytest.raises(ImportError, match="has changed"):
        _imported("late_named")


def test_what_belongs_to_others_is_not_asked(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module of another folder counts for nothing, though the actor's has one of its name behind."""
    other = tmp_path_factory.mktemp("other")
    (other / "late_named.py").write_text("K = 3\n")
    _edited(folder / "late_named.py")
    monkeypatch.syspath_prepend(str(other))
    assert _imported("late_named") == 3


def test_an_actor_without_a_file_checks_nothing() -> None:
    """No finder is put in."""
    before = list(sys.meta_path)
    LateImports().check("A", code_of(type("A", (), {"__module__": "nowhere"})))
    assert sys.meta_path == before
