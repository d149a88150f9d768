"""Names what an actor's class is to workers: "directory/package.module:Class" or "path/to/file.py:Class".

A worker imports the class by that name, as `multiprocessing`'s spawn does; nothing is pickled.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from atomr_mp import errors
from atomr_mp.protocol.keywords import checked_names
from atomr_mp.startup.device_lists import text_of

Actors = str | type | Iterable[str | type]
"""Actors, as `start` takes them: one actor or several, each by its name or as its class."""

BASE: Final = ("atomr_mp_workers.actor", "Actor")
"""Module and name of the class that actors derive from; importing it is left to those who write actors."""

LOADING: Final = "atomr_mp_workers.loading"
"""The module that imports actors in a worker."""


def targets(actors: Actors) -> list[str]:
    """Return the targets of actors, as `PoolSettings.actors` has them.

    Raises:
        ConfigurationError: A class is no actor, or a worker could not import it.
    """
    several = [actors] if isinstance(actors, str | type) or not isinstance(actors, Iterable) else actors
    return [each if isinstance(each, str) else target(each) for each in several]


@checked_names
def on_devices(actor: str | type, devices: Iterable[int]) -> str:
    """Return an actor for `start` that only some devices have.

    `start(actors=[Small, on_devices(Large, [0, 1])])` loads `Large` in the workers of the devices 0 and 1 alone. Calls
    of it go to these.

    Args:
        actor: Its class or its name, as `start` takes them.
        devices: Indices of the devices.

    Raises:
        ConfigurationError: It is no actor, or a worker could not import it.
        InvalidRequest: devices is no list, has none, or one that is no whole number from 0 to 63.
    """
    return f"{actor if isinstance(actor, str) else target(actor)}@{text_of(devices)}"


def target(actor: Any) -> str:
    """Return the name by which a worker imports an actor's class.

    Raises:
        ConfigurationError: It is no actor's class, or a worker could not import it; the message says what to do.
    """
    if not isinstance(actor, type):
        hint = f"; name the class itself, {type(actor).__name__}" if _is_actor(type(actor)) else ""
        raise errors.ConfigurationError(
            f"{actor!r} is no actor{hint}; an actor is a class, or its name: package.module:Class or file.py:Class"
        )
    if not _is_actor(actor):
        raise errors.ConfigurationError(f"{actor.__qualname__} is no actor; derive it from atomr_mp_workers.Actor")
    module = sys.modules.get(actor.__module__)
    if module is not None and actor.__module__ == "__main__":
        location = _of_program(actor, module)
    else:
        location = _of_module(actor.__module__, module)
    _check_place(actor, module)
    return f"{location}:{actor.__name__}"


def check_no_actor_loads() -> None:
    """Refuse to start a pool while a worker imports the module that starts it: it would start pools for ever.

    Raises:
        ConfigurationError: This process is a worker that imports an actor.
    """
    if getattr(sys.modules.get(LOADING), "importing", False):
        raise errors.ConfigurationError(
            "the module of an actor starts a pool when it is imported, and workers import it too; put what starts the "
            'pool under `if __name__ == "__main__":`'
        )


def _is_actor(cls: type) -> bool:
    return any((base.__module__, base.__qualname__) == BASE for base in cls.__mro__[1:])


def _check_place(actor: type, module: types.ModuleType | None) -> None:
    """Check that a class is found in its module under its name."""
    name = actor.__qualname__
    if "<locals>" in name:
        inside = name.partition(".<locals>")[0]
        raise errors.ConfigurationError(
            f"the actor {actor.__name__} is defined in the function {inside}, where workers cannot import it; define "
            "it at the top level of its module"
        )
    if "." in name:
        raise errors.ConfigurationError(
            f"the actor {name} is defined inside a class, where workers cannot import it; define it at the top level "
            "of its module"
        )
    if getattr(module, name, None) is not actor:
        raise errors.ConfigurationError(
            f"{actor.__module__}.{name} is not the class that was given, so workers would import another one; give "
            "each actor's class a name of its own"
        )


def _of_program(actor: type, module: types.ModuleType) -> str:
    """Return where a class of `__main__` is found again."""
    spec = module.__spec__
    if spec is not None and spec.name != "__main__":  # `python -m package.module`
        return _of_module(spec.name, module)
    file = getattr(module, "__file__", None)
    if file is None or not Path(file).is_file():
        raise errors.ConfigurationError(
            f"the actor {actor.__name__} is defined in a notebook, an interactive interpreter or a `-c` program, which "
            "workers cannot import; put it into a file, and import it from there or name it as "
            f"file.py:{actor.__name__}"
        )
    path = Path(file).absolute()
    if path.suffix != ".py" or "." in path.stem:
        raise errors.ConfigurationError(
            f"the actor {actor.__name__} is defined in {path.name}, which workers cannot import by that name; call the "
            "file NAME.py, without other dots, or move the class into a module"
        )
    return str(path)


def _of_module(name: str, module: types.ModuleType | None) -> str:
    """Return a module's name, behind the directory that it is imported from, if that is plain."""
    file = getattr(module, "__file__", None)
    parts = name.split(".")
    if file is None:
        return name
    path = Path(file).absolute().with_suffix("")
    tail = [*parts, "__init__"] if path.name == "__init__" else parts
    if path.parts[-len(tail) :] != tuple(tail):
        return name  # an importer of its own: workers have it too, or say that there is no such module
    return str(path.parents[len(tail) - 1] / name)
