"""Descriptions in TOML: a table for each model. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec

from atomr_mp import errors
from atomr_mp.protocol.decoders import known
from atomr_mp.protocol.words import did_you_mean
from atomr_mp.serve.oip.settings import InputSetting, ModelSetting, OutputSetting

HOW: Final = 'method = "Actor.method"'
"""How a table names its method."""

Setting = TypeVar("Setting", bound=msgspec.Struct)


def models_of(text: str, where: str) -> dict[str, ModelSetting]:
    """Return the models of a file, as they are said; `checks.py` has the rules.

    Args:
        text: The file's.
        where: The file, for the error.

    Raises:
        ConfigurationError: It is no TOML, or has something else than such tables.
    """
    import tomllib

    try:
        tables = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise errors.ConfigurationError(f"{where}: {str(error) or 'it is nested too deeply'}") from error
    return {name: _model(f"{where}: model {name!r}", table) for name, table in tables.items()}


def _model(where: str, table: object) -> ModelSetting:
    given = dict(_table(where, table))
    given["inputs"] = _tensors(where, "input", given.get("inputs", {}), InputSetting)
    given["outputs"] = _tensors(where, "output", given.get("outputs", {}), OutputSetting)
    headers = given.get("headers")
    if isinstance(headers, list):
        given["headers"] = [each.lower() if isinstance(each, str) else each for each in headers]
    return _setting(where, given, ModelSetting)


def _tensors(where: str, what: str, tables: object, kind: type[Setting]) -> dict[str, Setting]:
    found = _table(f"{where}: {what}s", tables)
    return {
        name: _setting(f"{where}: {what} {name!r}", _table(f"{where}: {what} {name!r}", table), kind)
        for name, table in found.items()
    }


def _setting(where: str, given: Mapping[str, Any], kind: type[Setting]) -> Setting:
    fields = {each.name: each for each in msgspec.structs.fields(kind)}
    for name, value in given.items():
        if name not in fields:
            raise errors.ConfigurationError(f"{where}: there is no setting {name!r}{did_you_mean(name, fields)}")
        try:
            msgspec.convert(value, known(fields[name].type))
        except (msgspec.ValidationError, UnicodeEncodeError) as error:
            raise errors.ConfigurationError(f"{where}: {name} is {repr(value)[:100]}: {error}") from error
    return msgspec.convert(dict(given), known(kind))


def _table(where: str, given: object) -> Mapping[str, Any]:
    if not isinstance(given, dict):
        raise errors.ConfigurationError(f"{where} is {repr(given)[:100]}, and not a table")
    return given
