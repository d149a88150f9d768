"""Modules that requests import: the reports of them, and how the next process imports them."""

from __future__ import annotations

import importlib
import sys
import threading
import types
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomr_mp.protocol.messages import control
from atomr_mp_workers.requests.off_loop.in_progress import InProgress
from atomr_mp_workers.supervised import imports
from atomr_mp_workers.supervised.imports import EVERY_NS, MAX_NAME_CHARS, ImportsAhead, RequestsImports

PREFIX: Final = "imported_by_a_test"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that imports look into; what was imported of it is forgotten."""
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith(PREFIX)]:
        del sys.modules[name]


class Told:
    """A worker's reports, at a time that a test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *own: str) -> None:
        self.now_ns = EVERY_NS
        monkeypatch.setattr(imports.time, "monotonic_ns", lambda: self.now_ns)  # type: ignore[attr-defined]
        self.in_progress: Final = InProgress()
        self.messages: list[control.Imported] = []
        self.imports: Final = RequestsImports(self.in_progress, self.messages.append, own)

    def look(self) -> list[str]:
        """Look after a second, and return the names in all reports."""
        self.now_ns += EVERY_NS
        self.imports.look()
        return [module.name for message in self.messages for module in message.modules]

    def waits(self) -> bool:
        """Whether the next look is in a second."""
        return self.imports.due_ns == self.now_ns + EVERY_NS


def write(folder: Path, name: str, code: str = "") -> str:
    """Write a module; return its name."""
    path = folder / (f"{PREFIX}_{name}".replace(".", "/") + ".py")
    path.parent.mkdir(exist_ok=True)
    path.write_text(code)
    return f"{PREFIX}_{name}"


class TestRequestsImports:
    """What the process that serves tells."""

    def test_what_requests_have_imported_is_told_once_they_are_answered(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The importing one first, once; and not before the requests that ran at that time have come back."""
        told = Told(monkeypatch)
        inner = write(folder, "inner")
        outer = write(folder, "outer", f"import {inner}")
        running: Any = types.SimpleNamespace(method=types.SimpleNamespace(stream=None))
        told.in_progress.begin(running)
        importlib.import_module(outer)
        assert told.look() == []
        assert told.waits()
        told.in_progress.end(running)
        assert told.look() == [outer, inner]
        assert not told.waits()
        assert told.look() == [outer, inner]
        assert control.FROM_WORKER.decode(control.FROM_WORKER.encode(told.messages[0])) == told.messages[0]

    def test_looks_are_seldom(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The next report of an import comes a second later."""
        told = Told(monkeypatch)
        first, second = write(folder, "first"), write(folder, "second")
        importlib.import_module(first)
        assert told.look() == [first]
        importlib.import_module(second)
        told.imports.look()
        assert len(told.messages) == 1
        assert told.waits()
        assert told.look() == [first, second]

    def test_a_module_that_is_still_being_imported_waits(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A thread of the actor's may import beside the requests."""
        told = Told(monkeypatch)
        name = write(folder, "long", "import sys; sys.modules[__name__ + '_go'].wait()")
        go_on = threading.Event()
        monkeypatch.setitem(sys.modules, f"{name}_go", go_on)
        thread = threading.Thread(target=importlib.import_module, args=(name,))
        thread.start()
        while name not in sys.modules and thread.is_alive():
            pass
        assert told.look() == []
        assert told.waits()
        go_on.set()
        thread.join()
        assert told.look() == [name]

    def test_what_another_thread_has_imported_is_not_told(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """It may have set what holds for that thread; what the loop imports of it later is known by then."""
        monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
        told = Told(monkeypatch)
        told.imports.begin()
        inner, own = write(folder, "inner"), write(folder, "own")
        outer = write(folder, "outer", f"import {inner}")
        thread = threading.Thread(target=importlib.import_module, args=(outer,))
        thread.start()
        thread.join()
        importlib.import_module(own)
        importlib.import_module(inner)
        assert told.look() == [own]

    def test_an_actor_s_own_file_is_not_told_under_another_name(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The next process loads it anyway, as an actor."""
        name = write(folder, "actor")
        told = Told(monkeypatch, str(folder / f"{name}.py"))
        importlib.import_module(name)
        assert told.look() == []

    @given(data=st.data())
    def test_whatever_is_in_the_table_of_modules_no_code_of_it_runs(self, data: st.DataObject) -> None:
        """Reports have modules with a file of their own name; others are made at run time, or have two names."""

        class Lazy(types.ModuleType):
            def __getattr__(self, name: str) -> Any:
                raise AssertionError(f"code of a module has run for {name}")

        def made(kind: str, name: Any) -> Any:
            module = types.ModuleType("any")
            origin: Any = {"no text": 7, "no file": None}.get(kind, f"/a/{kind}.py")
            spec = ModuleSpec("other" if kind == "alias" else name, None, origin=origin)
            spec.has_location = kind not in {"built in", "no file"}
            module.__spec__ = spec
            kinds = {"nothing": None, "object": object(), "lazy": Lazy("lazy"), "bare": types.ModuleType("bare")}
            return kinds.get(kind, module)

        rest = st.text(max_size=20) | st.just("n" * MAX_NAME_CHARS) | st.just("\udc80")
        kinds = ["nothing", "object", "lazy", "bare", "no text", "no file", "alias", "built in", "good"]
        drawn = data.draw(st.dictionaries(rest, st.sampled_from(kinds), max_size=8))
        table: dict[Any, Any] = {f"{PREFIX}{name}": kind for name, kind in drawn.items()}
        with pytest.MonkeyPatch.context() as monkeypatch:
            told = Told(monkeypatch)
            for name, kind in table.items():
                monkeypatch.setitem(sys.modules, name, made(kind, name))
            monkeypatch.setitem(sys.modules, "__main__", made("good", "__main__"))
            good = [
                name
                for name, kind in table.items()
                if kind == "good" and len(name) <= MAX_NAME_CHARS and name.isprintable()
            ]
            assert told.look() == good[::-1]
            for message in told.messages:
                assert control.FROM_WORKER.decode(control.FROM_WORKER.encode(message)) == message

    def test_only_so_many_are_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A process that makes modules without end does not tell without end; each message has room in a packet."""
        told = Told(monkeypatch)
        for start in range(0, 6000, 3000):
            for number in range(start, start + 3000):
                name = f"{PREFIX}_{number}"
                module = types.ModuleType(name)
                module.__spec__ = ModuleSpec(name, None, origin=f"/{name}.py")
                module.__spec__.has_location = True
                monkeypatch.setitem(sys.modules, name, module)
            names = told.look()
        assert len(names) == control.MAX_MODULES
        assert {len(message.modules) for message in told.messages} <= set(range(control.MAX_MODULES_AT_A_TIME + 1))


class Ahead:
    """A standby that imports, and what it tells."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.imports: Final = ImportsAhead(lambda message: self.told.append(message.name))

    def run(self, *modules: control.ImportedModule, more: bool = False) -> list[str]:
        """Import modules; return the reports."""
        self.imports.add(control.ImportAhead(list(modules), more=more))
        while self.imports:
            self.imports.import_next()
        return self.told


def ordered(folder: Path, name: str) -> control.ImportedModule:
    """Return the order to import a module from a file of this folder."""
    return control.ImportedModule(name, imports._digest(str(folder / f"{name.replace('.', '/')}.py")))


class TestImportsAhead:
    """What a standby does with it."""

    def test_it_imports_on_the_calling_thread_and_says_what(self, folder: Path) -> None:
        """In their order, but for those that were imported meanwhile; what fails is left to the first request."""
        code = "import threading; thread = threading.current_thread()"
        inner = write(folder, "inner", code)
        outer = write(folder, "outer", f"import {inner}; {code}")
        wrong = write(folder, "wrong", "raise SystemExit(1)")
        last = write(folder, "last")
        ahead = Ahead()
        assert ahead.run(*(ordered(folder, name) for name in (outer, inner, wrong, last))) == [outer, wrong, last, ""]
        assert sys.modules[outer].thread is sys.modules[inner].thread is threading.current_thread()
        assert wrong not in sys.modules

    def test_it_is_over_with_the_last_message_of_the_list(self, folder: Path) -> None:
        """A process is not ready before, however slowly the messages come."""
        names = [write(folder, f"part_{number}") for number in range(3)]
        ahead = Ahead()
        for name in names:
            last = name == names[-1]
            assert ahead.run(ordered(folder, name), more=not last)[-1] == ("" if last else name)
            assert ahead.imports.is_whole is last

    def test_a_name_that_means_something_else_here_is_left_alone(self, folder: Path) -> None:
        """Another file, none at all, or one in a package that was not imported."""
        other = write(folder, "other")
        inside = write(folder, "package.inside")
        write(folder, "package.__init__", "raise AssertionError('the package was imported')")
        elsewhere = folder / "elsewhere"
        modules = [ordered(elsewhere, other), ordered(folder, f"{PREFIX}_none"), ordered(folder, inside)]
        assert Ahead().run(*modules) == [""]
        assert other not in sys.modules

    def test_a_package_is_imported_before_what_is_in_it(self, folder: Path) -> None:
        """Each by its own name, so that the supervisor knows which import fails."""
        inside = write(folder, "package.inside")
        write(folder, "package.__init__")
        package = f"{PREFIX}_package"
        outer = msgspec.structs.replace(ordered(folder, f"{package}.__init__"), name=package)
        found = Ahead().run(ordered(folder, inside), outer)
        assert found == [package, inside, ""]

    def test_once_it_takes_calls_it_imports_no_more(self, folder: Path) -> None:
        """But what it is importing."""
        ahead = Ahead()
        first = write(folder, "first", "import sys; sys.modules[__name__ + '_stop'].stop()")
        second = write(folder, "second")
        sys.modules[f"{first}_stop"] = ahead.imports  # type: ignore[assignment]
        assert ahead.run(ordered(folder, first), ordered(folder, second), more=True) == [first, ""]
        assert second not in sys.modules
        assert ahead.imports.is_whole
