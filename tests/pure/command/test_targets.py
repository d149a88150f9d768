"""By what name workers import an actor's class."""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from atomr_mp import errors
from atomr_mp.protocol.messages.control import ActorSpec
from atomr_mp.startup.config import actor_specs
from atomr_mp.startup.targets import on_devices, target, targets
from atomr_mp_workers import Actor, method
from atomr_mp_workers.loading import load

SOURCE = """
from atomr_mp_workers import Actor, method

class Words(Actor):
    @method
    def length(self, word: str) -> int:
        return len(word)
"""


class Outer:
    """Has an actor inside."""

    class Inner(Actor):
        """Cannot be found by its name alone."""

        @method
        def nothing(self) -> None:
            """Never run."""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory, on the import path, with a module and a package that have actors."""
    (tmp_path / "targets_beside.py").write_text(SOURCE)
    inner = tmp_path / "targets_package" / "inner"
    inner.mkdir(parents=True)
    for directory in (inner, inner.parent):
        (directory / "__init__.py").write_text("")
    (inner / "deep.py").write_text(SOURCE.replace("from atomr", "from . import __name__ as _\nfrom atomr"))
    (inner / "__init__.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("targets_")]:
        del sys.modules[name]


@pytest.mark.parametrize("name", ["targets_beside", "targets_package.inner.deep", "targets_package.inner"])
def test_a_class_is_named_by_its_module_and_where_that_is_imported_from(
    package: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A worker, whose import path has not that directory, finds it there."""
    module = __import__(name, fromlist=["Words"])
    named = target(module.Words)
    assert named == f"{package}/{name}:Words"
    for each in [each for each in sys.modules if each.startswith("targets_")]:
        del sys.modules[each]
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each != str(package)])
    (spec,) = actor_specs([named])
    assert spec == ActorSpec("Words", named)
    assert load(spec).methods[0].function("four") == 4


def test_actors_may_be_one_or_several() -> None:
    """A single text is one actor, not its letters."""
    assert targets("file.py:A") == ["file.py:A"]
    assert targets(["file.py:A", "OTHER=b.c:D"]) == ["file.py:A", "OTHER=b.c:D"]
    assert targets(()) == []


def in_a_function() -> type:
    """Return a class that only this call has."""

    class Local(Actor):
        @method
        def nothing(self) -> None:
            """Never run."""

    return Local


def renamed() -> type:
    """Return a class whose name means another one."""
    cls = type("SOURCE", (Actor,), {})
    cls.__module__ = __name__
    return cls


@pytest.mark.parametrize(
    ("actor", "says"),
    [
        (in_a_function(), "defined in the function in_a_function, .* top level of its module"),
        (Outer.Inner, "Outer.Inner is defined inside a class, .* top level of its module"),
        (renamed(), "SOURCE is not the class that was given"),
        (Outer, "Outer is no actor; derive it from atomr_mp_workers.Actor"),
        (Outer.Inner(), "is no actor; name the class itself, Inner"),
        (7, "7 is no actor; an actor is a class, or its name"),
    ],
)
def test_a_class_that_workers_cannot_import_is_refused_with_what_to_do(actor: Any, says: str) -> None:
    """Nothing is started before that."""
    with pytest.raises(errors.ConfigurationError, match=says):
        targets([actor])


@pytest.mark.parametrize(
    ("attributes", "says"),
    [
        ({}, "notebook, an interactive interpreter or a `-c` program, .* name it as file.py:Words"),
        ({"__file__": "<stdin>"}, "notebook, an interactive interpreter"),
        ({"__file__": __file__.removesuffix(".py") + ".cannot.py"}, "notebook"),
    ],
)
def test_a_class_of_a_program_without_a_file_is_refused_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, attributes: dict[str, str], says: str
) -> None:
    """It could not be imported again."""
    program = types.ModuleType("__main__")
    program.__dict__.update(attributes, __name__="__main__")
    monkeypatch.setitem(sys.modules, "__main__", program)
    exec(SOURCE, program.__dict__)
    with pytest.raises(errors.ConfigurationError, match=says):
        target(program.__dict__["Words"])


@pytest.mark.parametrize("name", ["tool", "my.words.py"])
def test_a_program_whose_name_is_no_modules_is_refused_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    """It says how to call the file."""
    (tmp_path / name).write_text(SOURCE)
    program = types.ModuleType("__main__")
    program.__file__ = str(tmp_path / name)
    monkeypatch.setitem(sys.modules, "__main__", program)
    exec(SOURCE, program.__dict__)
    with pytest.raises(errors.ConfigurationError, match=r"call the file NAME\.py"):
        target(program.__dict__["Words"])


def test_a_path_may_contain_an_equals_sign(tmp_path: Path) -> None:
    """Only what stands before the first one, and is no path, is a name."""
    file = tmp_path / "a=b" / "words.py"
    file.parent.mkdir()
    file.write_text(SOURCE)
    assert actor_specs([f"{file}:Words"]) == [ActorSpec("Words", f"{file}:Words")]
    assert actor_specs([f"W={file}:Words"]) == [ActorSpec("W", f"{file}:Words")]


def test_a_directory_that_does_not_exist_is_told(tmp_path: Path) -> None:
    """No worker has to look there."""
    with pytest.raises(errors.ConfigurationError, match=f"{tmp_path}/gone, does not exist"):
        actor_specs([f"{tmp_path}/gone/words:Words"])


@pytest.mark.parametrize("wrong", [None, 0, True, "0", b"0", {}, {0: 1}, [], [True], ["0"], [None], [64], [0.0]])
def test_what_names_no_devices_is_told_in_words(wrong: Any) -> None:
    """By the argument's name, whatever is given in place of a list."""
    with pytest.raises(errors.InvalidRequest, match=r"^devices "):
        on_devices("words.py:Words", wrong)


@pytest.mark.parametrize("devices", ["0", "1", "0+1", "0-3"])
@pytest.mark.parametrize("location", ["words.py", "package.module", "a@b/words.py"])
def test_devices_in_a_wrong_place_are_told_where_they_belong(devices: str, location: str) -> None:
    """Before the class, or cut off by the comma that is between actors."""
    with pytest.raises(errors.ConfigurationError, match=re.escape(f"{location}:Words@{devices}")):
        actor_specs([f"{location}@{devices}:Words"])
    with pytest.raises(errors.ConfigurationError, match=re.escape("Class@0+1")):
        actor_specs([devices])
