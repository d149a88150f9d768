"""Users' own ASGI middleware around the front end's application: `atomr-mp serve --middleware module:function`.

Run as a module with a target, it only looks whether that can be imported: the parent of the front ends runs no users'
code, and has a process of its own look before anything is started.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from atomr_mp import errors, output
from atomr_mp.process import interpreter
from atomr_mp.protocol.exceptions import describe
from atomr_mp.serve.front_end.connection import UNKNOWN_ROUTE, Asgi
from atomr_mp.serve.http.cors import Cors
from atomr_mp.serve.http.exchange import COMMON, DIRECT, JSON, Message, Receive, Scope, Send
from atomr_mp.serve.metrics import Counters
from atomr_mp.serve.problems import Header, Problem, body_of

_LOG: Final = logging.getLogger("atomr_mp.serve")

Wrap = Callable[[Any], Any]
"""Gets an ASGI application, and returns another one that asks it."""

UNASKED: Final = "atomr_mp.unasked"
"""Name of an ASGI extension that is there until the application is asked."""

CHECK_S: Final = 60.0
"""How long the import may take before the server starts."""

_UNANSWERED: Final = Problem(
    500, "internal_error", "the middleware of this server has failed; its log says how", maybe_executed=True
)


class SurroundedApplication:
    """The application with users' middleware around it. It raises only after its answer has begun.

    The shortcut beside ASGI is taken away, so that the middleware sees every request and every answer.

    Args:
        application: The application in the middle.
        targets: "module:function" or "file.py:function"; the first is the outermost.
        cors: Makes headers of the answers that are given here.
        counters: Count the answers of middleware that does not ask the application, which counts its own.

    Raises:
        ConfigurationError: One of them cannot be used.
    """

    def __init__(self, application: Asgi, targets: list[str], cors: Cors, counters: Counters) -> None:
        self._cors: Final = cors
        self._counters: Final = counters

        async def innermost(scope: Scope, receive: Receive, send: Send) -> None:
            scope.get("extensions", {}).pop(UNASKED, None)
            await application(scope, receive, send)

        found: Any = innermost
        for target in reversed(targets):
            wrap = load(target)
            try:
                found = wrap(found)
            except Exception as error:
                raise errors.ConfigurationError(f"the middleware {target} has raised {describe(error)}") from error
            if not callable(found):
                raise errors.ConfigurationError(
                    f"the middleware {target} has returned no ASGI application but a {type(found).__name__}"
                )
        self._application: Final[Asgi] = found

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Have the middleware answer; answer for it if it fails."""
        begun = False
        scope["extensions"][UNASKED] = {}

        async def watched(message: Message) -> None:
            nonlocal begun
            if not begun and UNASKED in scope["extensions"]:
                self._counters.count(UNKNOWN_ROUTE, message["status"])
            begun = True
            await send(message)

        direct = scope["extensions"].pop(DIRECT, None)
        if direct is not None and scope["method"] == "POST" and (crowd := direct.crowd()) is not None:
            await self._answer(scope, watched, crowd)
            return
        try:
            await self._application(scope, receive, watched)
        except BaseException as error:  # it may raise anything, even SystemExit, which would end the front end
            if begun or isinstance(error, GeneratorExit):  # the latter at the loop's end
                raise
            _LOG.exception("the middleware has raised (%s %s)", scope["method"], scope["path"][:200])
        else:
            if begun or (direct is not None and direct.gone):
                return
            _LOG.error("the middleware has not answered (%s %s)", scope["method"], scope["path"][:200])
        await self._answer(scope, watched, _UNANSWERED)

    async def _answer(self, scope: Scope, send: Send, problem: Problem) -> None:
        body = body_of(problem, "", debug=False)
        origin = next((value for name, value in scope["headers"] if name == b"origin"), None)
        length: Header = (b"content-length", b"%d" % len(body))
        headers = [JSON, length, *problem.headers, *self._cors.headers(origin), *COMMON]
        await send({"type": "http.response.start", "status": problem.status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


def load(target: str) -> Wrap:
    """Return the function that a target names; its module is imported.

    Raises:
        ConfigurationError: There is no such function, or the import has raised.
    """
    place, colon, name = target.rpartition(":")
    if not colon or not place or not name.isidentifier():
        raise errors.ConfigurationError(f"{target!r} names no middleware; write module:function or file.py:function")
    try:
        found = getattr(_module(place), name, None)
    except BaseException as error:  # a module may raise anything, even SystemExit
        raise errors.ConfigurationError(f"importing the middleware {target} failed with {describe(error)}") from error
    if not callable(found):
        raise errors.ConfigurationError(f"{place} has no function {name!r}")
    wrap: Wrap = found
    return wrap


def _module(place: str) -> ModuleType:
    """Import a module by its name or its file. Its neighbours can be imported, too; installed modules come first."""
    file = Path(place).absolute()
    folder = str(file.parent if place.endswith(".py") else Path.cwd())
    if folder not in sys.path:
        sys.path.append(folder)
    if not place.endswith(".py"):
        return importlib.import_module(place)
    if not file.is_file():
        raise FileNotFoundError(f"there is no file {file}")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(file.stem, module)
    spec.loader.exec_module(module)
    return module


def check(targets: list[str]) -> None:
    """Look whether middleware can be imported, in a process of its own.

    Raises:
        ConfigurationError: It cannot.
    """
    if not targets:
        return
    try:
        with interpreter.startable():
            done = subprocess.run(
                interpreter.module(__name__, *targets),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=CHECK_S,
                check=False,
            )
    except subprocess.TimeoutExpired as error:
        raise errors.ConfigurationError(
            f"the middleware {', '.join(targets)} was not imported within {CHECK_S:g} s"
        ) from error
    if done.returncode:
        why = done.stderr.strip().splitlines()
        raise errors.ConfigurationError(why[-1] if why else f"importing it ended with status {done.returncode}")


def main() -> int:
    """Import the targets in the arguments; say in the last line what is wrong."""
    output.protect()
    try:
        for target in sys.argv[1:]:
            load(target)
    except errors.ConfigurationError as error:
        sys.stderr.write(f"\n{' '.join(error.message.split())}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
