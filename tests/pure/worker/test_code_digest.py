"""The digest of an actor's code: what it depends on, and what not."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

import pytest

from atomr_mp_workers.code_digest import code_of


def loaded(folder: Path, monkeypatch: pytest.MonkeyPatch, **files: str) -> bytes:
    """Write modules into a folder, import the one named `main` anew, and return the digest of its class `A`."""
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(folder))
    for name in files:
        monkeypatch.delitem(sys.modules, name, raising=False)
    spec = importlib.util.spec_from_file_location("main", folder / "main.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "main", module)
    spec.loader.exec_module(module)
    return code_of(module.A).digest


MAIN = "import json\nimport digest_model\nfrom digest_layer import f\nclass A: pass\n"
FILES = {"digest_layer": "def f(): return 1\n", "digest_model": "from digest_layer import f\nX = 1\n", "main": MAIN}


def test_it_is_of_the_code_wherever_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same files give the same digest; a change of any of them another."""
    same = loaded(tmp_path / "one", monkeypatch, **FILES)
    assert len(same) == 16
    assert loaded(tmp_path / "two", monkeypatch, **FILES) == same
    for at, name in enumerate(FILES):
        changed = {**FILES, name: FILES[name] + "# changed\n"}
        assert loaded(tmp_path / f"changed{at}", monkeypatch, **changed) != same


def test_what_the_actor_does_not_import_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another actor of the same folder may have been imported in one process and not in another."""
    same = loaded(tmp_path / "one", monkeypatch, **FILES)
    assert loaded(tmp_path / "two", monkeypatch, digest_other="Y = 1\n", **FILES) == same


def test_values_are_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They may do anything when they are."""
    trap = "class Trap:\n    def __getattr__(self, name): raise SystemExit\ntrap = Trap()\nclass A: pass\n"
    assert loaded(tmp_path / "one", monkeypatch, main=trap)


def test_a_class_without_a_file_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one of a notebook."""
    monkeypatch.setattr(sys.modules[__name__], "__file__", "<string>")
    assert code_of(type("A", (), {})).digest == b""


def test_of_a_package_only_its_own_files_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules beside it are others' code, and may be many."""

    def digest(folder: str, model: str, beside: str) -> bytes:
        package = tmp_path / folder / "digest_package"
        (package / "deep").mkdir(parents=True)
        for file, text in {
            "__init__.py": "",
            "deep/__init__.py": "",
            "deep/actors.py": "import digest_beside\nfrom .. import model\nfrom ..layers import (\nf)\nclass A: pass\n",
            "model.py": model,
            "layers.py": "def f(): return 1\n",
            "../digest_beside.py": beside,
        }.items():
            (package / file).write_text(text)
        for name in [name for name in sys.modules if name.startswith("digest_")]:
            monkeypatch.delitem(sys.modules, name)
        with monkeypatch.context() as path:
            path.syspath_prepend(str(tmp_path / folder))
            return code_of(importlib.import_module("digest_package.deep.actors").A).digest

    same = digest("one", "X = 1\n", "Y = 1\n")
    assert digest("two", "X = 1\n", "Y = 2\n") == same
    assert digest("three", "X = 2\n", "Y = 1\n") != same
