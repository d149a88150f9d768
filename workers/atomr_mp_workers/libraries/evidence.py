"""Marks of the hardware on which requests were verified; a mark holds only as long as the code is unchanged.

`scripts/test-gpu` writes `verified.json` after all tests on a GPU; the support matrix and the documentation read it.
A mark names the functions that the request's own tests have executed. Its digest is of these, and of what they use:
classes, constants, imports. What other requests are declared by does not count, nor do docstrings and comments.
"""

from __future__ import annotations

import collections
import functools
import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from atomr_mp_workers.libraries.code_parts import MESSAGES, CodePart, library_of, parts, requests_named

FILE: Final = Path(__file__).parent / "verified.json"
"""Marks by "library.request.backend"; the file is missing as long as nothing was verified."""

ROOMS: Final = (
    "atomr_mp.libraries",
    "atomr_mp.protocol.allocation",
    "atomr_mp.protocol.declaration",
    "atomr_mp.protocol.dtypes",
    "atomr_mp.protocol.layout",
    "atomr_mp.protocol.libraries",
    "atomr_mp.protocol.refs",
    "atomr_mp_workers.device",
    "atomr_mp_workers.libraries",
    "atomr_mp_workers.memory",
    "atomr_mp_workers.requests",
)
"""Modules and packages whose code a mark vouches for. Messages, processes and the supervisor are not of a request."""


def verified(library: str, request: str, backend: str, file: Path = FILE) -> dict[str, Any] | None:
    """Return the mark of a request: device, driver, date; None if it has none, or its code has changed."""
    mark = dict(marks(file).get(f"{library}.{request}.{backend}", {}))
    ran = mark.pop("ran", ())
    return mark if mark and mark["digest"] == digest(library, request, backend, ran) else None


def marks(file: Path = FILE) -> dict[str, dict[str, Any]]:
    """Return all marks, each with the functions that were executed."""
    return _decoded(file.read_text(encoding="utf-8")) if file.exists() else {}


@functools.lru_cache(maxsize=1)
def _decoded(text: str) -> dict[str, dict[str, Any]]:
    content = json.loads(text)
    lines = content.get("functions", [])
    found = {}
    for name, mark in content.get("marks", {}).items():
        modules = (lines[int(number)].split(": ") for number in mark["ran"].split())
        found[name] = mark | {"ran": [f"{module}:{each}" for module, names in modules for each in names.split()]}
    return found


def encoded(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the file of marks; many have executed the same functions of a module, which are listed once."""
    lines = {name: _by_module(mark["ran"]) for name, mark in found.items()}
    listed = sorted({line for each in lines.values() for line in each})
    number = {line: str(place) for place, line in enumerate(listed)}
    short = {name: {**mark, "ran": " ".join(number[line] for line in lines[name])} for name, mark in found.items()}
    return json.dumps({"functions": listed, "marks": short}, indent=1, sort_keys=True) + "\n"


def _by_module(functions: Iterable[str]) -> list[str]:
    names: dict[str, list[str]] = {}
    for module, _, name in (each.partition(":") for each in sorted(functions)):
        names.setdefault(module, []).append(name)
    return [f"{module}: {' '.join(each)}" for module, each in names.items()]


def digest(library: str, request: str, backend: str, ran: Iterable[str]) -> str | None:
    """Return a digest of what a request's tests have executed; None if some of it is no longer there."""
    code = Code(library, request, backend, ran)
    if code.missing:
        return None
    found = hashlib.sha256()
    for line in sorted(code.lines()):
        found.update(f"{line}\n".encode())
    return found.hexdigest()


class Code:
    """The code that a mark vouches for.

    Args:
        library: The request's library.
        request: Its name.
        backend: Where it ran.
        ran: The functions that its own tests have executed, as "module:name".
        once: Functions that ran once in the processes of these tests. Those count too that the counted code names, for
            they have made what was kept: a handle, a table.
        ever: All functions that ran there. Those count that such functions name, and methods of counted classes that
            make their objects, or that their counted methods name.
    """

    def __init__(
        self,
        library: str,
        request: str,
        backend: str,
        ran: Iterable[str],
        once: Collection[str] = (),
        ever: Collection[str] = (),
    ) -> None:
        self._library: Final = library
        self._others: Final = set(requests_named(library).values()) - {request}
        self._once: Final = once
        self._ever: Final = frozenset(ever)
        self.functions: Final = set(ran)
        self._names: Final[dict[str, set[str]]] = collections.defaultdict(set)
        """Names that the counted code uses, by module."""
        for cls, name in requests_named(library).items():
            if name == request:
                self._names[f"{MESSAGES}.{library}"].add(cls)
        self._names[f"atomr_mp.libraries.{library}"].add("Reference")
        self._names[f"atomr_mp_workers.libraries.{library}.{backend}"].add("Implementation")
        self._attributes: Final[set[str]] = set()
        self._classes: Final[dict[str, set[str]]] = collections.defaultdict(set)
        """Classes that count, each with the attributes that its methods use."""
        self._named_in_code: Final[set[str]] = set()
        """Names in the library's functions, and of its classes' bases: other requests that they name count."""
        self._named_once: Final[set[str]] = set()
        """Names in functions that ran before."""
        self._counted: Final[dict[CodePart, None]] = {}
        there = (part for module in {each.partition(":")[0] for each in ran} for part in parts(module).all)
        self._add(part for part in there if part.is_function and part.key in self.functions)
        while self._add(part for module in list(self._names) for part in self._used_in(module)):
            pass

    @property
    def missing(self) -> set[str]:
        """The executed functions that are not there."""
        return self.functions - {part.key for part in self._counted}

    def lines(self) -> Iterator[str]:
        """Yield a line for each part that counts, and the names of methods that may stand for executed ones."""
        names = {each.partition(":")[2].rpartition(".")[2] for each in self.functions}
        yield from (part.digest for part in self._counted)
        for module, _, owner in (each.partition(":") for each in self._classes):
            methods = parts(module).methods.get(owner, ())
            yield from (part.key for part in methods if part.plain_name in names or part.is_dunder)

    def _used_in(self, module: str) -> Iterator[CodePart]:
        """Yield the parts of a module that the counted code uses."""
        there = parts(module)
        named = self._names[module]
        for name in [each for each in there.others if not each or each in named or each in self._attributes]:
            yield from (part for part in there.others[name] if part not in self._counted and self._is_used(part))
        for key in self._ever.intersection(there.functions):
            yield from (part for part in there.functions[key] if part not in self._counted and self._has_run(part))

    def _add(self, parts: Iterable[CodePart]) -> bool:
        """Count parts; return whether there were new ones."""
        new = list(parts)
        for part in new:
            self._counted[part] = None
            self._names[part.module] |= part.names
            self._attributes.update(part.attributes)
            for module, name in part.imports:
                if module.startswith(ROOMS):
                    self._names[module].add(name)
            if part.is_function:
                if part.key not in self.functions:
                    self.functions.add(part.key)
                    self._named_once.update(part.words)
                self._name(part, part.words)
                if part.owner:
                    self._names[part.module].add(part.owner)
                    self._classes[f"{part.module}:{part.owner}"] |= part.attributes
            elif part.is_class:
                self._classes[part.key] |= set()
                self._name(part, part.bases)
        return bool(new)

    def _name(self, part: CodePart, words: frozenset[str]) -> None:
        if library_of(part.module) == self._library:
            self._named_in_code.update(words)

    def _has_run(self, part: CodePart) -> bool:
        """Return whether a function may have made what the request's tests use, before them."""
        if self._is_of_another(part, part.plain_name):
            return False
        if part.owner:
            used = self._classes.get(f"{part.module}:{part.owner}")
            if used is None:
                return False
            if part.is_dunder or part.plain_name in used:
                return True  # an object was made, and keeps what its method has made
        if part.key in self._once:
            return part.plain_name in self._names[part.module] or part.plain_name in self._attributes
        return part.plain_name in self._named_once

    def _is_used(self, part: CodePart) -> bool:
        """Return whether a class or a binding counts that is named by what counts, or binds nothing."""
        named = {part.only, part.name} if part.is_class else {part.only}
        return not self._is_of_another(part, part.only) or not self._named_in_code.isdisjoint(named)

    def _is_of_another(self, part: CodePart, name: str) -> bool:
        """Return whether a part of a library stands for a request that is another, and that nothing counted names."""
        library = library_of(part.module)
        if library == self._library:
            return name in self._others
        return bool(library) and name in requests_named(library).values() and name not in self._attributes


def functions(names: Iterable[str]) -> set[str]:
    """Return the functions that are parts of modules, by the names of code that ran; what is nested is in others."""
    plain = {name.partition(".<locals>")[0] for name in names}
    return {name for name in plain if name in parts(name.partition(":")[0]).functions}


def mark(
    library: str,
    request: str,
    backend: str,
    ran: set[str],
    once: set[str],
    ever: set[str],
    *,
    of_all: bool = False,
) -> dict[str, Any] | None:
    """Return the functions that a mark vouches for, and their digest; None if the record has none of the library.

    Args:
        library: As of `Code`, as what follows is.
        request: Its name.
        backend: Where it ran.
        ran: What its tests have executed.
        once: What ran once.
        ever: What ran.
        of_all: Whether they are tests of other requests of the library too, whose methods are left out.
    """
    others = set(requests_named(library).values()) - {request} if of_all else ()
    own = {each for each in ran if not (each.rpartition(".")[2] in others and _library(each) == library)}
    code = Code(library, request, backend, own, once, ever)
    if code.missing or not any(f"_workers.libraries.{library}." in each for each in own):
        return None
    kept = sorted(code.functions)
    return {"ran": kept, "digest": digest(library, request, backend, kept)}


def _library(function: str) -> str:
    return library_of(function.partition(":")[0])
