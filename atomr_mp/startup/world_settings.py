"""The form of `worlds`, in the settings as they are given: checked, with errors in the caller's words. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from atomr_mp import errors
from atomr_mp.protocol import amounts
from atomr_mp.protocol.decoders import known
from atomr_mp.protocol.words import choices, did_you_mean, not_among
from atomr_mp.supervision.settings import WorldSettings

ONLY_WORLD: Final = "world"
"""Name of a world that is given by `--world` without a name."""

EXAMPLE: Final = '{"tp": {"devices": [0, 1], "actors": ["Mlp"]}}'


def plain_worlds(worlds: Any) -> Any:
    """Return worlds as settings have them: lists for what is none, and names for classes of actors."""
    if not isinstance(worlds, Mapping):
        return worlds
    return {name: _plain(world) for name, world in worlds.items()}


def world_of_all(given: Sequence[str], actors: Sequence[str]) -> dict[str, Any]:
    """Return the setting `worlds` that `--world [NAME=]DEVICES` stands for: one world of all actors.

    Args:
        given: The values of the option, with commas between devices.
        actors: The names of the pool's actors.

    Raises:
        ConfigurationError: It does not say which world is meant.
    """
    if len(given) > 1:
        raise errors.ConfigurationError(
            f"--world is given {len(given)} times ({', '.join(given)}), and each would have all of the pool's actors; "
            f"say which actors are in which world, by --set worlds='{EXAMPLE}' or in a file"
        )
    if not actors:
        raise errors.ConfigurationError(f"--world {given[0]} has no actors; name them by --actor or in a file")
    name, equals, devices = given[0].rpartition("=")
    each = [number.strip() for number in devices.split(",")]
    if not each[-1]:
        each.pop()  # "0," is the device 0, as it is for --gpus
    if not each or not all(number.isascii() and number.isdecimal() for number in each):
        raise errors.ConfigurationError(
            f"--world {given[0]} does not name devices; write [NAME=]0,1 with the devices by rank"
        )
    return {name if equals else ONLY_WORLD: {"devices": [int(number) for number in each], "actors": list(actors)}}


def check_form(where: str, worlds: Any) -> None:
    """Check that worlds are given as such.

    Args:
        where: Where they were given, for the error.
        worlds: The setting.

    Raises:
        ConfigurationError: They are not; the message names the world and what is wrong with it.
    """
    if not isinstance(worlds, Mapping):
        raise errors.ConfigurationError(f"{where}: worlds is {worlds!r}; give each world by its name: {EXAMPLE}")
    for name, world in worlds.items():
        if not isinstance(name, str):
            raise errors.ConfigurationError(f"{where}: {name!r} is no name for a world; give each one by its name")
        if not isinstance(world, WorldSettings):
            _check(f"{where}: world {name!r}", world)


def _plain(world: Any) -> Any:
    if not isinstance(world, Mapping):
        return world
    found = dict(world)
    devices, actors = found.get("devices"), found.get("actors")
    if isinstance(devices, Iterable) and not isinstance(devices, str | bytes):
        found["devices"] = list(devices)
    if isinstance(actors, Iterable) and not isinstance(actors, str | bytes):
        found["actors"] = [each.__name__ if isinstance(each, type) else each for each in actors]
    return found


def _check(what: str, world: Any) -> None:
    if not isinstance(world, Mapping):
        raise errors.ConfigurationError(f"{what} is {world!r}; it needs devices and actors, as in {EXAMPLE}")
    names = WorldSettings.__struct_fields__
    for key in world:
        if key not in names:
            raise errors.ConfigurationError(f"{what}: there is no setting {key!r}{did_you_mean(str(key), names)}")
    for key, noun in (("devices", "indices of devices"), ("actors", "names of actors")):
        if world.get(key, []) in ([], ()):
            raise errors.ConfigurationError(f"{what} has no {key}; give a list of {noun}, as in {EXAMPLE}")
    for field in msgspec.structs.fields(WorldSettings):
        if field.name in world:
            _check_value(what, field.name, field.type, world[field.name])


def _check_value(what: str, name: str, kind: Any, value: Any) -> None:
    try:
        found = msgspec.convert(value, known(kind))
    except (msgspec.ValidationError, UnicodeEncodeError) as error:
        words = choices(kind)
        why = not_among(name, value, words) if words else f"{name} is {value!r}: {error}"
        raise errors.ConfigurationError(f"{what}: {why}") from error
    if name == "begin_timeout_s":
        amounts.duration(f"{what}: {name}", found, error=errors.ConfigurationError)
