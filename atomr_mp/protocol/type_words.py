"""What errors call the types of values: the documentation's words for msgspec's. Pure."""

from __future__ import annotations

import re
from typing import Final


def told(message: str) -> str:
    """Return a message of msgspec's about a value of the wrong type, with the documentation's words for types.

    msgspec calls a list an array, a map an object, and everything else that crosses an extension.
    """
    found = _UNFIT.match(message)
    if found is None:
        return message
    expected, got = found["expected"], found["got"]
    names = " | ".join(map(_word, expected.split(" | ")))
    behind = "" if got is None else f", got `{_word(got)}`"
    return f"Expected `{names}`{behind}{message[found.end() :]}"


def _word(name: str) -> str:
    return _WORDS.get(name, name)


_UNFIT: Final = re.compile(r"Expected `(?P<expected>[^`]*)`(?:, got `(?P<got>[^`]*)`)?")

_ARRAY: Final = "NumPy array"

_WORDS: Final = {
    "array": "list",
    "object": "map",
    "dict": "map",
    "null": "None",
    "NoneType": "None",
    "ext": f"{_ARRAY}, ref or complex",
    "numpy.ndarray": _ARRAY,
    "ndarray": _ARRAY,
    "Array": f"{_ARRAY} or ref",
    "TensorArgument": f"tensor, {_ARRAY} or ref",
    "Tensor": f"tensor, {_ARRAY} or ref",
    "DeviceArray": "ref",
    "atomr_mp_workers.memory.arrays.DeviceArray": "ref",
}
"""Words for msgspec's, and for the classes that stand for arrays in a worker."""
