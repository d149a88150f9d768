"""Inputs of a request, one or several: texts, or tokens as lists of numbers. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from atomr_mp.serve.openai.refusals import missing, refusal, wrong_type

MOST_INPUTS: Final = 2048
"""Most inputs of a request, the same as OpenAI's limit."""


def inputs_of(param: str, given: object) -> Sequence[Any]:
    """Return the inputs, at least one: texts, or lists of numbers.

    Args:
        param: The field, for errors.
        given: Its value: an input, or a list of them.

    Raises:
        Problem: 400; there are none or too many, or they are something else.
    """
    if given is None:
        raise missing(param, f"{param} is missing: a text, or a list of texts")
    several = isinstance(given, list) and not (given and all(map(_is_token, given)))
    inputs: Sequence[Any] = given if several and isinstance(given, list) else [given]
    if not 0 < len(inputs) <= MOST_INPUTS or given == "":
        raise refusal(param, "invalid_value", f"{param} is a text that is not empty, or a list of 1 to {MOST_INPUTS}")
    for at, each in enumerate(inputs):
        where = f"{param}[{at}]" if several else param
        if not isinstance(each, str) and not (isinstance(each, list) and all(map(_is_token, each))):
            raise wrong_type(where, f"{where} is neither a text nor a list of tokens, which are whole numbers")
    return inputs


def _is_token(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
