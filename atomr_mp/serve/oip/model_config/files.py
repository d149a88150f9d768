"""Reads the files of descriptions. It may block for as long as the disk does."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from atomr_mp import errors
from atomr_mp.serve.oip.model_config import checks, triton
from atomr_mp.serve.oip.model_config.tables import HOW, models_of
from atomr_mp.serve.oip.settings import ModelSetting, OutputSetting

MOST_BYTES: Final = 2**20
"""Most bytes of a description."""

MOST_LABEL_BYTES: Final = 2**23
"""Most bytes of a file of labels."""

TRITON: Final = ".pbtxt"


class Descriptions(NamedTuple):
    """What files describe."""

    models: dict[str, ModelSetting]
    """By name."""
    warnings: list[str]
    """What of the files has no effect, and why."""


def read(files: Iterable[Path]) -> Descriptions:
    """Read descriptions: tables in TOML, or a config.pbtxt of Triton's where a name ends so.

    Raises:
        ConfigurationError: A file cannot be read, is none, or describes what cannot be.
    """
    found = Descriptions({}, [])
    of_files: dict[str, Path] = {}
    for file in files:
        text = _text_of(file, MOST_BYTES, "the description")
        if file.name.endswith(TRITON):
            described = triton.model_of(text, str(file), file.absolute().parent.name)
            models, how = {described.name: described.setting}, triton.HOW
            found.warnings.extend(described.warnings)
        else:
            models, how = models_of(text, str(file)), HOW
        for name, setting in models.items():
            if name in found.models:
                raise errors.ConfigurationError(f"the model {name!r} is described twice: {of_files[name]}, {file}")
            of_files[name] = file
            found.models[name] = _with_labels(file, name, checks.check(str(file), name, setting, how))
    return found


def _with_labels(file: Path, name: str, setting: ModelSetting) -> ModelSetting:
    """Return a setting with the labels of its files, whose names are relative to the description's."""
    outputs = {
        tensor: each
        if not each.label_filename
        else _labelled(f"{file}: model {name!r}: output {tensor!r}", each, file.parent / each.label_filename)
        for tensor, each in setting.outputs.items()
    }
    return msgspec.structs.replace(setting, outputs=outputs)


def _labelled(where: str, setting: OutputSetting, file: Path) -> OutputSetting:
    if setting.labels:
        raise errors.ConfigurationError(f"{where}: it has both labels and label_filename")
    lines = _text_of(file, MOST_LABEL_BYTES, f"{where}: the file of its labels").removesuffix("\n").split("\n")
    return msgspec.structs.replace(setting, labels=tuple(line.removesuffix("\r") for line in lines))


def _text_of(file: Path, most_bytes: int, what: str) -> str:
    """Return a file's text.

    Raises:
        ConfigurationError: There is none, or it is too long.
    """
    try:
        if not file.is_file():  # reading a pipe would wait for ever
            raise errors.ConfigurationError(f"{what} {file} is no file")
        with file.open("rb") as opened:
            found = opened.read(most_bytes + 1)
        if len(found) > most_bytes:
            raise errors.ConfigurationError(f"{what} {file} has more than {most_bytes} bytes")
        return found.decode()
    except (OSError, ValueError) as error:
        raise errors.ConfigurationError(f"{what} {file} cannot be read: {error}") from error
