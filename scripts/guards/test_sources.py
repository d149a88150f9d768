"""What holds for all code of the product, beside what Ruff and import-linter can say."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from atomr_mp.supervision import stacks
from guards.pages import ROOT

SOURCES: Final = {
    str(file.relative_to(ROOT)): file.read_text(encoding="utf-8")
    for folder in ("atomr_mp", "workers")
    for file in sorted((ROOT / folder).rglob("*.py"))
}
PROGRAMS: Final = {
    "atomr_mp/relay/__main__.py",
    "atomr_mp/helpers/config_reader.py",
    "atomr_mp/helpers/gpu_monitor.py",
    "atomr_mp/helpers/metrics_server.py",
    "atomr_mp/ray/sweeper.py",
    "atomr_mp/serve/front_end/__main__.py",
    "atomr_mp/serve/front_end/middleware.py",
    "atomr_mp/supervisor/__main__.py",
    "workers/atomr_mp_workers/boot/import_check.py",
    "workers/atomr_mp_workers/boot/zygote.py",
    "workers/atomr_mp_workers/compiling/process/__main__.py",
}
COMMANDS: Final = {
    "atomr_mp/__main__.py",
    "atomr_mp/cli/__main__.py",
    "workers/atomr_mp_workers/__main__.py",  # its `worker_main` does
    "workers/atomr_mp_workers/libraries/__main__.py",
}
MAIN: Final = '\nif __name__ == "__main__":\n'
OF_DECODERS: Final = {"DecodeError", "MsgspecError", "TOMLDecodeError"}


def names(node: ast.AST | None) -> set[str]:
    """Return the last parts of the names in an expression."""
    found = list(ast.walk(node)) if node is not None else []
    attributes = {each.attr for each in found if isinstance(each, ast.Attribute)}
    return attributes | {each.id for each in found if isinstance(each, ast.Name)}


def incomplete(tree: ast.AST) -> Iterator[int]:
    """Yield the lines of what catches a decoder's errors, but not that of nesting."""
    for node in ast.walk(tree):
        caught: list[ast.AST | None] = []
        if isinstance(node, ast.Try):
            caught += [each.type for each in node.handlers]
        elif isinstance(node, ast.Call) and "suppress" in names(node.func):
            caught += node.args
        found = set().union(*map(names, caught))
        if found & OF_DECODERS and not found & {"RecursionError", "Exception", "BaseException"}:
            assert isinstance(node, ast.stmt | ast.expr)
            yield node.lineno


def test_who_catches_a_decoders_errors_catches_that_of_nesting() -> None:
    """Deep input is a `RecursionError` of msgspec and of tomllib, which none of their own errors covers."""
    decoding = {file: source for file, source in SOURCES.items() if any(name in source for name in OF_DECODERS)}
    assert decoding
    assert [f"{file}:{line}" for file, source in decoding.items() for line in incomplete(ast.parse(source))] == []


def unstarted(tree: ast.AST) -> Iterator[int]:
    """Yield the lines that keep a thread, or a timer, which is started afterwards, outside of a constructor."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef) and function.name != "__init__":
            for node in [each for each in ast.walk(function) if isinstance(each, ast.Assign)]:
                targets, made = node.targets, node.value if isinstance(node.value, ast.Call) else None
                if (
                    made
                    and names(made.func) & {"Thread", "Timer"}
                    and not all(isinstance(at, ast.Name) for at in targets)
                ):
                    yield node.lineno


def test_a_thread_is_kept_only_once_it_is_started() -> None:
    """Whoever closes at the same moment would join it, which fails; and a start may fail for good."""
    starting = {file: source for file, source in SOURCES.items() if "threading.T" in source}
    assert starting
    assert [f"{file}:{line}" for file, source in starting.items() for line in unstarted(ast.parse(source))] == []


def kept_and_raised(tree: ast.AST) -> Iterator[int]:
    """Yield the lines that raise an exception which a variable or an object keeps, or let a variable keep a caught one.

    The name that a handler gives goes with the handler; others have to be deleted by a `finally` around the raising.
    """
    above = {below: node for node in ast.walk(tree) for below in ast.iter_child_nodes(node)}

    def around(node: ast.AST) -> Iterator[ast.AST]:
        while (node := above.get(node, tree)) is not tree:
            yield node

    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(raised := node.exc, ast.Name | ast.Attribute):
            name = raised.id if isinstance(raised, ast.Name) else raised.attr
            goes = {each.name for each in around(node) if isinstance(each, ast.ExceptHandler)} | {
                target.id
                for each in around(node)
                if isinstance(each, ast.Try)
                for last in each.finalbody
                if isinstance(last, ast.Delete)
                for target in last.targets
                if isinstance(target, ast.Name)
            }
            if name.lstrip("_")[0].islower() and not (isinstance(raised, ast.Name) and name in goes):
                yield node.lineno
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
            caught = {each.name for each in around(node) if isinstance(each, ast.ExceptHandler)}
            if node.value.id in caught and any(isinstance(target, ast.Name) for target in node.targets):
                yield node.lineno


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("raise reply.error", [1]),
        ("error = reply.error\nraise error from None", [2]),
        ("try:\n    f()\nexcept E as error:\n    kept = error", [4]),
        ("try:\n    f()\nexcept E as error:\n    raise error", []),
        ("try:\n    raise error\nfinally:\n    del error", []),
        ("raise unraised(reply.error)", []),
        ("raise _Private", []),
    ],
)
def test_what_is_kept_and_raised_is_found(source: str, lines: list[int]) -> None:
    """In any form that the product had, and nothing else."""
    assert list(kept_and_raised(ast.parse(source))) == lines


def test_no_exception_is_raised_that_something_keeps() -> None:
    """Its traceback would lead to what keeps it, and hold the callers' memory; see `errors.unraised`."""
    client = {file: source for file, source in SOURCES.items() if file.startswith("atomr_mp/")}
    assert [f"{file}:{line}" for file, source in client.items() for line in kept_and_raised(ast.parse(source))] == []


def learned_elsewhere(tree: ast.AST) -> Iterator[int]:
    """Yield the lines where msgspec is given a type that `protocol.decoders` has not made known."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        whole, types = ast.unparse(node.func), [each.value for each in node.keywords if each.arg == "type"]
        if whole == "msgspec.convert":
            types = types or node.args[1:2]
        elif re.fullmatch(r"msgspec\.\w+\.Decoder", whole):
            types = types or node.args[:1]
        elif not re.fullmatch(r"msgspec\.\w+\.decode", whole):
            continue
        for each in types:
            is_known = isinstance(each, ast.Call) and ast.unparse(each.func) == "known"
            if not (is_known or re.fullmatch(r"(dict|list|str|int|Any|msgspec\.Raw|[][, ])+", ast.unparse(each))):
                yield node.lineno


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("msgspec.msgpack.Decoder(Plan)", [1]),
        ("msgspec.json.Decoder(type=Plan)", [1]),
        ("x = 1\nmsgspec.json.decode(text, type=Plan)", [2]),
        ("msgspec.convert(found, Plan, strict=False)", [1]),
        ("msgspec.convert(found, dict[str, Plan])", [1]),
        ("msgspec.convert(found, known(Plan))", []),
        ("msgspec.json.decode(text, type=known(list[Plan]))", []),
        ("msgspec.json.decode(text, type=dict[str, Any])", []),
        ("msgspec.json.decode(text)", []),
        ("msgspec.msgpack.Decoder(ext_hook=hook)", []),
        ("decoder(Plan).decode(data)", []),
    ],
)
def test_a_type_that_msgspec_learns_is_found(source: str, lines: list[int]) -> None:
    """Wherever the type is given."""
    assert list(learned_elsewhere(ast.parse(source))) == lines


def test_msgspec_learns_one_type_at_a_time() -> None:
    """Two threads that have it learn a class at once end the process; see `protocol.decoders`."""
    others = {file: source for file, source in SOURCES.items() if not file.endswith("protocol/decoders.py")}
    assert [f"{file}:{line}" for file, source in others.items() for line in learned_elsewhere(ast.parse(source))] == []


def test_no_private_name_of_a_module_is_left_over() -> None:
    """What only its own definition names was forgotten when its last use went."""
    left = [
        f"{file}:{node.lineno}: {name}"
        for file, source in SOURCES.items()
        for node in ast.parse(source).body
        for name in defined(node)
        if re.fullmatch(r"_[a-zA-Z]\w*", name) and len(re.findall(rf"\b{name}\b", source)) == 1
    ]
    assert left == []


def defined(node: ast.stmt) -> list[str]:
    """Return the names that a statement of a module defines."""
    match node:
        case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.ClassDef(name):
            return [name]
        case ast.AnnAssign(ast.Name(name)):
            return [name]
        case ast.Assign(targets):
            return [each.id for each in targets if isinstance(each, ast.Name)]
    return []


def test_every_process_of_ours_protects_its_output() -> None:
    """Each program that lives beside a pool does so before it writes; commands write for whoever has asked."""
    assert {name for name in PROGRAMS if "output.protect()" not in SOURCES[name]} == set()
    assert {name for name, source in SOURCES.items() if MAIN in source} - PROGRAMS == COMMANDS


def test_every_module_that_we_start_is_started_without_the_current_folder() -> None:
    """One function makes these command lines: no other code of ours starts an interpreter by `-m`."""
    found = [name for name, source in SOURCES.items() if '"-m"' in source and not name.endswith("/interpreter.py")]
    assert found == []


@pytest.mark.parametrize(
    ("module", "functions"),
    [("atomr_mp_workers.host", {"_serve", "_sleep"}), ("atomr_mp_workers.requests.request", {"call"})],
)
def test_what_stacks_are_read_by_is_there(module: str, functions: set[str]) -> None:
    """A file or function that is renamed would have every hang reported as one of native code."""
    path = "/".join(module.split(".")[1:])
    tree = ast.parse(SOURCES[f"workers/atomr_mp_workers/{path}.py"])
    assert functions <= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    assert f'"{path}.py"' in Path(stacks.__file__).read_text(encoding="utf-8")


def test_nobody_waits_by_select() -> None:
    """It fails for descriptors from 1024 on, which a pool with many clients has, or a long run of tests."""
    rooms = [path for room in ("scripts", "tests") for path in (ROOT / room).rglob("*.py")]
    others = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in rooms}
    assert [file for file, source in (SOURCES | others).items() if re.search(r"\bselect\.select\(", source)] == []
