"""The parts of a module that a mark vouches for or not, each as a whole, without docstrings, comments and format.

A part is a function with all that is inside of it, a class without its functions, or a binding of a name.
"""

from __future__ import annotations

import ast
import collections
import functools
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

FOLDERS: Final = (Path(__file__).parents[1].parent, Path(__file__).parents[3])
"""Folders that packages are looked for in: beside this one, and in the root of the project."""

MESSAGES: Final = "atomr_mp.protocol.libraries"
FUNCTION: Final = (ast.FunctionDef, ast.AsyncFunctionDef)


class CodePart:
    """A part of a module.

    Args:
        module: The module.
        name: Its name there, "CudaBlas.gemm"; empty for a statement that binds none.
        nodes: Its syntax.
        only: The request that it is for: its class, its name bound in a class, its entry in a table. Empty for others.
    """

    def __init__(self, module: str, name: str, nodes: Iterable[ast.AST], only: str = "") -> None:
        self.module, self.name, self.only = module, name, only
        self._nodes: Final = list(nodes)
        self.is_function: Final = isinstance(self._nodes[0], FUNCTION)
        self.is_class: Final = isinstance(self._nodes[0], ast.ClassDef)
        self.key: Final = f"{module}:{name}"
        self.owner, _, self.plain_name = name.rpartition(".")
        """The class of a method, and its name there."""
        self.is_dunder: Final = self.plain_name.startswith("__") and self.plain_name.endswith("__")

    @functools.cached_property
    def text(self) -> str:
        """Its code, the same under every version of Python."""
        return "\n".join(_text(node) for node in self._nodes)

    @functools.cached_property
    def digest(self) -> str:
        """A digest of it."""
        return hashlib.sha256(f"{self.key} {self.only} {self.text}".encode()).hexdigest()

    @functools.cached_property
    def names(self) -> frozenset[str]:
        """The names in it."""
        return frozenset(each.id for each in self._syntax[ast.Name])

    @functools.cached_property
    def attributes(self) -> frozenset[str]:
        """The names of attributes in it."""
        return frozenset(each.attr for each in self._syntax[ast.Attribute])

    @functools.cached_property
    def words(self) -> frozenset[str]:
        """Both, and the texts in it."""
        texts = (each.value for each in self._syntax[ast.Constant])
        return self.names | self.attributes | {each for each in texts if isinstance(each, str)}

    @functools.cached_property
    def bases(self) -> frozenset[str]:
        """The names of a class's bases."""
        bases = (base for node in self._nodes if isinstance(node, ast.ClassDef) for base in node.bases)
        return frozenset(getattr(base, "id", getattr(base, "attr", "")) for base in bases)

    @functools.cached_property
    def imports(self) -> frozenset[tuple[str, str]]:
        """The modules that it may import, each with a name in it, or an empty one."""
        found: set[tuple[str, str]] = set()
        for node in self._syntax[ast.ImportFrom]:
            if node.module:
                found |= {(node.module, each.name) for each in node.names}
                found |= {(f"{node.module}.{each.name}", "") for each in node.names}
        for node in self._syntax[ast.Import]:
            found |= {(each.name, "") for each in node.names}
        return frozenset(found)

    @functools.cached_property
    def _syntax(self) -> Mapping[type, list[Any]]:
        """All that it consists of, by kind."""
        found: Mapping[type, list[Any]] = collections.defaultdict(list)
        for node in self._nodes:
            for each in ast.walk(node):
                found[type(each)].append(each)
        return found


class ModuleCode:
    """The parts of a module.

    Args:
        module: Its name.
        text: Its source.
    """

    def __init__(self, module: str, text: str) -> None:
        self.all: Final = list(_parts(module, _bare(ast.parse(text))))
        self.functions: Final = _grouped((part.key, part) for part in self.all if part.is_function)
        """Functions by "module:name"."""
        self.others: Final = _grouped((part.name, part) for part in self.all if not part.is_function)
        """Classes and bindings by name."""
        self.methods: Final = _grouped((part.owner, part) for part in self.all if part.is_function)
        """Functions by the class that they are methods of."""


def _grouped(pairs: Iterable[tuple[str, CodePart]]) -> Mapping[str, list[CodePart]]:
    found: dict[str, list[CodePart]] = {}
    for name, part in pairs:
        found.setdefault(name, []).append(part)
    return found


@functools.cache
def parts(module: str) -> ModuleCode:
    """Return the parts of a module; none if it is no file of the project."""
    return ModuleCode(module, source(module) or "")


def source(module: str) -> str | None:
    """Return the source of a module; None if it is no file of the project."""
    path = Path(*module.split("."))
    candidates = (folder / each for folder in FOLDERS for each in (path.with_suffix(".py"), path / "__init__.py"))
    file = next((each for each in candidates if each.is_file()), None)
    return None if file is None else file.read_text(encoding="utf-8")


@functools.cache
def requests_named(library: str) -> Mapping[str, str]:
    """Return the names of a library's requests by those of their classes, from their source."""
    tree = ast.parse(source(f"{MESSAGES}.{library}") or "")
    return {
        node.name: statement.value.value
        for node in tree.body
        if isinstance(node, ast.ClassDef)
        for statement in node.body
        if isinstance(statement, ast.AnnAssign | ast.Assign)
        and "name" in _targets(statement)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    }


@functools.cache
def library_of(module: str) -> str:
    """Return the library whose own module this is; empty for shared ones."""
    rooms = (MESSAGES, "atomr_mp.libraries.generated", "atomr_mp.libraries", "atomr_mp_workers.libraries")
    names = {f"{module}.".removeprefix(f"{room}.").partition(".")[0] for room in rooms if module.startswith(f"{room}.")}
    return next((name for name in names if requests_named(name)), "")


def _bare(tree: ast.Module) -> ast.Module:
    """Take docstrings out, and the types of what functions take and return."""
    for node in ast.walk(tree):
        for block in ("body", "orelse", "finalbody"):
            statements = getattr(node, block, None)
            if isinstance(statements, list):
                statements[:] = [each for each in statements if not _is_text(each)]
        if isinstance(node, FUNCTION):
            node.returns = None
        elif isinstance(node, ast.arg):
            node.annotation = None
    return tree


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _parts(module: str, tree: ast.Module) -> Iterator[CodePart]:
    library = library_of(module)
    requests = requests_named(library) if library else {}
    for node in tree.body:
        if isinstance(node, FUNCTION):
            yield CodePart(module, node.name, [node])
        elif isinstance(node, ast.ClassDef):
            only = requests.get(node.name, "") if module.startswith(MESSAGES) else ""
            statements = [each for each in node.body if not isinstance(each, FUNCTION)]
            functions = [each for each in node.body if isinstance(each, FUNCTION)]
            node.body = [] if not only else statements  # a request's class is one part
            yield CodePart(module, node.name, [node], only)
            for statement in () if only else statements:
                yield from (
                    CodePart(module, node.name, each, whose) for _, each, whose in _bindings(statement, requests)
                )
            yield from (CodePart(module, f"{node.name}.{each.name}", [each]) for each in functions)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                one = ast.Import([alias])
                if isinstance(node, ast.ImportFrom):
                    one = ast.ImportFrom(node.module, [alias], node.level)  # type: ignore[assignment]
                yield CodePart(module, (alias.asname or alias.name).partition(".")[0], [one])
        elif not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
            yield from (CodePart(module, name, each, whose) for name, each, whose in _bindings(node, requests))


def _bindings(node: ast.stmt, requests: Mapping[str, str]) -> Iterator[tuple[str, list[ast.AST], str]]:
    """Yield the names that a statement binds, with its syntax and the request that the name or a table's entry is for.

    Args:
        node: The statement.
        requests: The names of requests, by those of their classes.
    """
    value, targets = getattr(node, "value", None), _targets(node)
    if value is None or not targets:
        yield "", [node], ""
        return
    names = set(requests.values())

    def whose(key: ast.AST | None) -> str:
        if isinstance(key, ast.Constant):
            return key.value if key.value in names else ""
        return requests.get(getattr(key, "attr", getattr(key, "id", "")), "")

    table = value.args[0] if isinstance(value, ast.Call) and len(value.args) == 1 else value
    entries: list[tuple[ast.AST | None, list[ast.AST]]] = []
    if isinstance(table, ast.Dict):
        entries = [(key, [key, each] if key else [each]) for key, each in zip(table.keys, table.values, strict=True)]
        table.keys, table.values = [], []
    elif isinstance(table, ast.Set):
        entries, table.elts = [(each, [each]) for each in table.elts], []
    kind = [node.annotation] if isinstance(node, ast.AnnAssign) else []
    for target in targets:
        only = target if target in names else ""
        yield target, [*kind, value], only
        yield from ((target, entry, only or whose(key)) for key, entry in entries)


def _targets(node: ast.stmt) -> list[str]:
    """Return the names that an assignment binds; none for other statements."""
    targets = getattr(node, "targets", [getattr(node, "target", None)]) if not isinstance(node, ast.AugAssign) else []
    named = [each for target in targets for each in getattr(target, "elts", [target])]
    return [each.id for each in named if isinstance(each, ast.Name)] if all(map(_is_name, named)) else []


def _is_name(node: ast.AST) -> bool:
    return isinstance(node, ast.Name)


def _text(value: object) -> str:
    """Return syntax as text. `ast.dump` and `ast.unparse` differ from one version of Python to the next."""
    if isinstance(value, list):
        return f"[{' '.join(map(_text, value))}]"
    if not isinstance(value, ast.AST):
        return repr(value)
    fields = dict(ast.iter_fields(value))
    if isinstance(value, ast.JoinedStr):  # some versions split its texts, or have empty ones
        joined: list[object] = [""]
        for each in value.values:
            if not isinstance(each, ast.Constant):
                joined += [each, ""]
            else:
                joined[-1] = f"{joined[-1]}{each.value!s}"
        fields["values"] = joined
    kept = (f"{name}={_text(each)}" for name, each in fields.items() if name not in {"ctx", "kind"} and _is_there(each))
    return f"{type(value).__name__}({' '.join(kept)})"


def _is_there(value: object) -> bool:
    return value is not None and value != []
