"""The rules for what a description says, whichever form it has. Pure."""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

from atomr_mp import errors
from atomr_mp.protocol import amounts
from atomr_mp.protocol.layout import MAX_DIMENSIONS
from atomr_mp.protocol.words import did_you_mean
from atomr_mp.serve.oip.datatypes import BYTES, NAMES
from atomr_mp.serve.oip.settings import FALSE_TRUE, ID_DATATYPES, InputSetting, ModelSetting, OutputSetting

MOST_NAME_BYTES: Final = 256

MOST_ROWS: Final = 2**31 - 1
"""Most rows of a request, as Triton's `max_batch_size` can tell them."""

MOST_LEVELS: Final = 2**31 - 1

MOST_LENGTH: Final = 2**63 - 1

STATS: Final = "stats"
"""No model may have this name: its path would be that of the statistics of all."""

_METHOD: Final = re.compile(r"\w+\.\w+")

_HEADER: Final = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+")


def check(where: str, name: str, setting: ModelSetting, how: str) -> ModelSetting:
    """Return a model's setting; its method is its name if none is said.

    Args:
        where: The file, for the error.
        name: The model's name.
        setting: What is described.
        how: How the file would name a method, for the error.

    Raises:
        ConfigurationError: It cannot be so.
    """
    _check_name(where, name)
    where = f"{where}: model {name!r}"
    method = setting.method or name
    if not _METHOD.fullmatch(method):
        what = f"method is {method!r}" if setting.method else "it has no method, and its own name is none"
        raise errors.ConfigurationError(f"{where}: {what}; write {how}")
    for tensor, each in setting.inputs.items():
        _check_tensor(f"{where}: input {tensor!r}", tensor, each)
    for tensor, output in setting.outputs.items():
        _check_tensor(f"{where}: output {tensor!r}", tensor, output)
    _check_once(where, "parameter", [each.parameter or tensor for tensor, each in setting.inputs.items()], setting)
    _check_once(where, "key", [each.key or tensor for tensor, each in setting.outputs.items()])
    if setting.default_priority_level and not setting.priority_levels:
        raise errors.ConfigurationError(f"{where}: default_priority_level needs priority_levels")
    for option, value, most in (
        ("max_batch_size", setting.max_batch_size, MOST_ROWS),
        ("priority_levels", setting.priority_levels, MOST_LEVELS),
        ("default_priority_level", setting.default_priority_level, setting.priority_levels),
    ):
        amounts.whole(f"{where}: {option}", value, 0, most, error=errors.ConfigurationError)
    if setting.priority_levels and not setting.default_priority_level:
        raise errors.ConfigurationError(
            f"{where}: default_priority_level is missing; it is 1 to {setting.priority_levels}, the priority_levels"
        )
    if setting.deadline_s is not None:
        amounts.duration(f"{where}: deadline_s", setting.deadline_s, error=errors.ConfigurationError)
    _check_sequences(where, setting)
    _check_headers(where, setting)
    return _with_method(setting, method)


def _with_method(setting: ModelSetting, method: str) -> ModelSetting:
    import msgspec

    return setting if setting.method else msgspec.structs.replace(setting, method=method)


def _check_name(where: str, name: str) -> None:
    why = ""
    if not name:
        why = "is empty"
    elif len(name.encode("utf-8", "replace")) > MOST_NAME_BYTES:
        why = f"has more than {MOST_NAME_BYTES} bytes"
    elif name == STATS:
        why = "is the path of all models' statistics"
    elif "/" in name or ".." in name or name == ".":
        why = "would be another path: it has '/' or '..', or is '.'"
    elif not name.isprintable() or any(each.isspace() for each in name) or "\ufffd" in name:
        why = "has white space or characters that cannot be seen"
    if why:
        raise errors.ConfigurationError(f"{where}: the model's name {name[:MOST_NAME_BYTES]!r} {why}")


def _check_tensor(where: str, name: str, setting: InputSetting | OutputSetting) -> None:
    if not name or len(name.encode("utf-8", "replace")) > MOST_NAME_BYTES or not name.isprintable():
        raise errors.ConfigurationError(
            f"{where}: its name has 1 to {MOST_NAME_BYTES} bytes, and no characters that cannot be seen"
        )
    known = [*NAMES, BYTES]
    if setting.datatype and setting.datatype not in known:
        hint = did_you_mean(setting.datatype, known)
        raise errors.ConfigurationError(
            f"{where}: there is no datatype {setting.datatype!r}{hint}; there are: {', '.join(known)}"
        )
    if setting.shape is None:
        return
    if len(setting.shape) >= MAX_DIMENSIONS:
        raise errors.ConfigurationError(
            f"{where}: its shape has {len(setting.shape)} lengths; there are fewer than {MAX_DIMENSIONS}"
        )
    for length in setting.shape:
        if not (length == -1 or 0 < length <= MOST_LENGTH):
            raise errors.ConfigurationError(
                f"{where}: a length of its shape is {length}; write 1 or more, or -1 for any"
            )


def _check_once(where: str, what: str, given: list[str], setting: ModelSetting | None = None) -> None:
    """Check that nothing stands for two things.

    Args:
        where: The model, for the error.
        what: What is given.
        given: The parameters or keys of the tensors.
        setting: Has the parameters that get something else than tensors.
    """
    others = [] if setting is None else [setting.id_to, setting.parameters_to, setting.headers_to, setting.sequence_to]
    controls = {} if setting is None else setting.sequence_controls
    others += [each.parameter or name for name, each in controls.items()]
    for each, count in Counter([*given, *filter(None, others)]).items():
        if count > 1:
            raise errors.ConfigurationError(f"{where}: the {what} {each!r} is given to {count} things")


def _check_sequences(where: str, setting: ModelSetting) -> None:
    if setting.sequence_idle_s is not None:
        amounts.duration(f"{where}: sequence_idle_s", setting.sequence_idle_s, error=errors.ConfigurationError)
    for name, each in setting.sequence_controls.items():
        what = f"{where}: sequence_controls {name!r}"
        _check_tensor(what, name, InputSetting())
        known = ID_DATATYPES if each.kind == "id" else FALSE_TRUE
        if each.datatype not in known:
            raise errors.ConfigurationError(f"{what}: its datatype is one of {', '.join(known)}, not {each.datatype!r}")
        if name in setting.inputs:
            raise errors.ConfigurationError(f"{what}: an input has this name, too")


def _check_headers(where: str, setting: ModelSetting) -> None:
    if bool(setting.headers) != bool(setting.headers_to):
        raise errors.ConfigurationError(f"{where}: headers and headers_to go together")
    for each in setting.headers:
        if not _HEADER.fullmatch(each):
            raise errors.ConfigurationError(f"{where}: headers: {each[:MOST_NAME_BYTES]!r} is no header's name")
