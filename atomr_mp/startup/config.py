"""Gathers the settings of a pool: from keyword arguments or the command line's flags, the environment and a TOML file.

What comes first holds. The environment's variables are called ATOMR_MP_NAME.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from atomr_mp import errors
from atomr_mp.protocol import amounts
from atomr_mp.protocol.decoders import known
from atomr_mp.protocol.messages.control import ActorSpec
from atomr_mp.protocol.words import choices, did_you_mean, not_among
from atomr_mp.startup.device_lists import check_place, devices_in
from atomr_mp.startup.world_settings import check_form
from atomr_mp.supervision.settings import PoolSettings
from atomr_mp.supervisor.plan import Plan, PlanSource

DEFAULT: Final = "default"
"""The source of a setting that is left at its default."""

PREFIX: Final = "ATOMR_MP_"
"""Begins the environment variables of settings; the name follows in capital letters."""


class Gathered(NamedTuple):
    """Settings, and where they are from."""

    settings: PoolSettings
    sources: dict[str, str]
    """For each setting, in words: "default", "option", "environment", "FILE"."""
    given: dict[str, Any]
    """Those that were given, without what the environment and the file have."""
    unknown: list[str]
    """Variables that begin as if they were settings and are none. No error: orchestrators make such names of
    services, as ATOMR_MP_SERVICE_HOST."""


def gather(file: Path | None, settings: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> Gathered:
    """Put settings together; what is given comes before the environment, and that before the file.

    Args:
        file: A TOML file.
        settings: What is given; None means that it is not.
        environment: Where ATOMR_MP_NAME is looked for.

    Raises:
        ConfigurationError: The file cannot be read, or a setting is unknown or out of range.
    """
    in_file = {} if file is None else _of_file(file)
    in_environment, unknown = _of_environment(environment)
    given = {name: value for name, value in settings.items() if value is not None}
    if isinstance(given.get("actors"), str):
        given["actors"] = [given["actors"]]
    sources = dict.fromkeys(PoolSettings.__struct_fields__, DEFAULT)
    values: dict[str, Any] = {}
    for found, source in ((in_file, str(file)), (in_environment, "environment"), (given, "option")):
        _check_names(found, str(file) if found is in_file else "the settings", OF_START if found is given else ())
        values |= found
        sources |= dict.fromkeys(found, source)
    for field in msgspec.structs.fields(PoolSettings):
        if field.name in values:
            where = str(file) if sources[field.name] == str(file) else "the settings"
            _check_value(where, field, values[field.name])
    return Gathered(msgspec.convert(values, known(PoolSettings)), sources, given, unknown)


def _check_value(where: str, field: msgspec.structs.FieldInfo, value: Any) -> None:
    """Check one setting.

    Raises:
        ConfigurationError: It is of another type, or out of range; the message names it, and says what it may be.
    """
    name, words = field.name, choices(field.type)
    if name == "worlds":
        check_form(where, value)
    try:
        found = msgspec.convert(value, known(field.type))
    except (msgspec.ValidationError, UnicodeEncodeError) as error:
        if words:
            raise errors.ConfigurationError(f"{where}: {not_among(name, value, words)}") from error
        raise errors.ConfigurationError(f"{where}: {name} is {value!r}: {error}") from error
    if type(found) is float and name.endswith("_s"):
        amounts.duration(f"{where}: {name}", found, zero=True, error=errors.ConfigurationError)
    elif type(found) is int:
        amounts.whole(f"{where}: {name}", found, 0, error=errors.ConfigurationError)


OF_START: Final = ("config", "weight", "max_waiting")
"""Arguments of `start` that are no settings."""


def _check_names(found: Mapping[str, Any], where: str, others: Iterable[str] = ()) -> None:
    """Check that there are such settings.

    Args:
        found: The settings.
        where: Where they were given.
        others: What else may be given there.

    Raises:
        ConfigurationError: One is unknown.
    """
    for name in found:
        if name not in PoolSettings.__struct_fields__:
            raise errors.ConfigurationError(
                f"{where}: there is no setting {name!r}{did_you_mean(name, [*PoolSettings.__struct_fields__, *others])}"
            )


def _of_file(file: Path) -> dict[str, Any]:
    import tomllib

    try:
        values = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise errors.ConfigurationError(f"the configuration {file} cannot be read: {error}") from error
    # Relative paths in a file are relative to the file.
    actors = values.get("actors")
    if isinstance(actors, str | list):
        several = [actors] if isinstance(actors, str) else actors
        values["actors"] = [_anchored(str(actor), file.parent) for actor in several]
    return values


def _of_environment(environment: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    fields = {f"{PREFIX}{field.name.upper()}": field for field in msgspec.structs.fields(PoolSettings)}
    values = {}
    for variable in sorted(fields.keys() & environment.keys()):
        values[fields[variable].name] = from_text(variable, fields[variable].name, environment[variable])
    return values, sorted(name for name in environment if name.startswith(PREFIX) and name not in fields)


def from_text(where: str, name: str, text: str) -> Any:
    """Return a setting that was written as text: as in TOML, but lists with commas, and worlds as JSON.

    Args:
        where: What it was written as, for the error.
        name: The setting.
        text: Its value.

    Raises:
        ConfigurationError: There is no such setting, or it cannot have this value.
    """
    kinds = {field.name: field.type for field in msgspec.structs.fields(PoolSettings)}
    if name not in kinds:
        raise errors.ConfigurationError(f"{where}: there is no setting {name!r}{did_you_mean(name, kinds)}")
    value: object = [each.strip() for each in text.split(",") if each.strip()] if kinds[name] == list[str] else text
    if name == "worlds":
        return _worlds_from_text(where, text)
    try:
        return msgspec.convert(value, known(kinds[name]), strict=False)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:
        words = choices(kinds[name])
        what = not_among(where, text, words) if words else f"{where} is {text!r}: {error}"
        raise errors.ConfigurationError(what) from error


def _worlds_from_text(where: str, text: str) -> Any:
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise errors.ConfigurationError(f"{where} is {text!r}, which is no JSON: {error}") from error
    check_form(where, found)
    return found


def with_source(plan: Plan, file: Path, settings: dict[str, Any]) -> Plan:
    """Return a plan that says what it was made from, so that it can be made again: a file, and what came before it."""
    given = {name: value for name, value in settings.items() if value is not None}
    return msgspec.structs.replace(plan, source=PlanSource(str(file.absolute()), msgspec.json.encode(given).decode()))


def actor_specs(actors: list[str]) -> list[ActorSpec]:
    """Return actors as workers get them: named, files with absolute paths.

    Raises:
        ConfigurationError: Not of the form "[NAME=]module:Class[@DEVICES]" or "[NAME=]file.py:Class[@DEVICES]", a name
            comes twice, or a file or directory does not exist.
    """
    specs: dict[str, ActorSpec] = {}
    for actor in actors:
        named, target = _split(actor)
        location, colon, rest = target.rpartition(":")
        cls, at, behind = rest.partition("@")
        check_place(actor, location)
        if not (colon and location and not location.endswith(":") and cls.isidentifier()):
            raise errors.ConfigurationError(
                f"{actor!r} does not name an actor; write package.module:Class or path/to/file.py:Class"
            )
        name = named or cls
        devices = devices_in(actor, behind) if at else ()
        if not name.isidentifier():
            raise errors.ConfigurationError(f"{name!r} is no name for an actor; use letters, digits and _")
        if name in specs:
            raise errors.ConfigurationError(f"two actors are called {name!r}; name one of them: OTHER={target}")
        specs[name] = ActorSpec(name, f"{_absolute(location)}:{cls}", devices)
    return list(specs.values())


def _split(actor: str) -> tuple[str, str]:
    """Return the name that an actor is given, if any, and what it is. A path may contain "=" too."""
    name, equals, target = actor.partition("=")
    return (name, target) if equals and "/" not in name else ("", actor)


def _absolute(location: str) -> str:
    """Return where an actor is, with its file or directory as an absolute path.

    Raises:
        ConfigurationError: The file or directory does not exist.
    """
    path = Path(location).absolute()
    if location.endswith(".py"):
        if not path.is_file():
            raise errors.ConfigurationError(f"the actor's file {path} does not exist")
        return str(path)
    if "/" in location:
        if not path.parent.is_dir():
            raise errors.ConfigurationError(f"the directory of the actor's module, {path.parent}, does not exist")
        return str(path)
    return location


def _anchored(actor: str, directory: Path) -> str:
    name, target = _split(actor)
    location, colon, cls = target.rpartition(":")
    if location.endswith(".py") or "/" in location:
        target = f"{directory / location}{colon}{cls}"
    return f"{name}={target}" if name else target
