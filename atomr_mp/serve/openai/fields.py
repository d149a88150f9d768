"""What becomes of each field of a request: used by the form, given to the method, accepted as it is, or refused. Pure.

A method gets the fields that it has parameters for. Of the others, OpenAI's default values are accepted, since clients
send them without being asked to. Any other value would change the answer, so it is refused by the field's name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple

from atomr_mp.protocol.words import did_you_mean
from atomr_mp.serve.openai.refusals import refusal, shown, wrong_type
from atomr_mp.serve.problems import Problem

Accepted = Mapping[str, tuple[Any, ...]]
"""The values of fields that are accepted."""


class Fields(NamedTuple):
    """The fields of a form."""

    used: frozenset[str]
    """The form reads these itself."""
    fixed: Accepted
    """No method can do anything about these, so only these values are accepted."""
    optional: Accepted
    """A method may have parameters for these; without one, these values are accepted, which ask for nothing."""
    harmless: frozenset[str] = frozenset({"user", "metadata", "safety_identifier", "prompt_cache_key"})
    """These change no answer: accepted with any value, and given to a method that has parameters for them."""
    aliases: Mapping[str, tuple[str, ...]] = {}
    """Names of parameters that a field may be given to, the best first, where they are not the field's own."""

    def given(self, body: Mapping[str, Any], takes: Collection[str], method: str) -> dict[str, Any]:
        """Return the fields of a request that are given to a method, by parameter.

        Args:
            body: The request.
            takes: The method's parameters, but for the first.
            method: "Actor.method", for errors.

        Raises:
            Problem: 400; a field has a value of a wrong kind, or asks for what the method does nothing about.
        """
        found: dict[str, Any] = {}
        for name, value in body.items():
            if value is None or name in self.used:
                continue
            check_kind(name, value)
            if name in self.fixed:
                if not _among(value, self.fixed[name]):
                    raise _unsupported(name, value, self.fixed[name], "this server has no such thing")
            elif parameter := self._parameter(name, takes):
                found.setdefault(parameter, value)
            elif name in self.harmless:
                continue
            elif name not in self.optional:
                raise self._unknown(name, takes, method)
            elif not _among(value, self.optional[name]):
                has = ", ".join(sorted(takes)) or "none"
                why = f"{method} has no parameter for it; its parameters are: {has}"
                raise _unsupported(name, value, self.optional[name], why)
        return found

    def _parameter(self, name: str, takes: Collection[str]) -> str:
        names = self.aliases.get(name, (name,))
        return next((each for each in names if each in takes), "")

    def _unknown(self, name: str, takes: Collection[str], method: str) -> Problem:
        known = [*self.used, *self.fixed, *self.optional, *self.harmless, *takes]
        shown_name = name[:100]
        why = f"neither OpenAI's form nor {method} has a field {shown_name!r}{did_you_mean(shown_name, known)}"
        return refusal(shown_name, "unknown_parameter", why)


def _unsupported(name: str, value: object, accepted: tuple[Any, ...], why: str) -> Problem:
    if not accepted:
        return refusal(name, "unsupported_parameter", f"{name} is not supported: {why}")
    may_be = " or ".join(map(repr, accepted))
    return refusal(name, "unsupported_value", f"{name} is {shown(value)}, which is not supported: {why}; send {may_be}")


def _among(value: object, accepted: tuple[Any, ...]) -> bool:
    """Return whether a value is one of those; true is not 1."""
    return any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in accepted)


def check_kind(name: str, value: object) -> None:
    """Check that a field of OpenAI's has a value of its kind.

    Raises:
        Problem: 400; it has another one.
    """
    kind = KINDS.get(name)
    if kind is not None and not (isinstance(value, kind.types) and (isinstance(value, bool) <= (bool in kind.types))):
        raise wrong_type(name, f"{name} is {kind.words}, not {shown(value)}")
    if name == "metadata" and isinstance(value, dict) and not all(isinstance(each, str) for each in value.values()):
        raise wrong_type(name, "metadata has texts by name, and nothing else")


def flag(body: Mapping[str, Any], name: str) -> bool:
    """Return a field that is true or false; false if it is missing.

    Raises:
        Problem: 400; it is something else.
    """
    value = body.get(name)
    if value is None or isinstance(value, bool):
        return bool(value)
    raise wrong_type(name, f"{name} is true or false, not {shown(value)}")


def includes_usage(body: Mapping[str, Any], *, streams: bool) -> bool:
    """Return whether the last chunk of a stream shall have the usage, by `stream_options`.

    Raises:
        Problem: 400; the options are wrong, or ask for something though nothing is streamed.
    """
    options = body.get("stream_options")
    if options is None:
        return False
    if not isinstance(options, dict):
        raise wrong_type("stream_options", "stream_options is an object")
    for name in options:
        if name not in STREAM_OPTIONS:
            hint = did_you_mean(name[:100], STREAM_OPTIONS)
            raise refusal(f"stream_options.{name[:100]}", "unknown_parameter", f"there is no such option{hint}")
        if flag(options, name) and not streams:
            raise refusal("stream_options", "invalid_value", f"stream_options.{name} needs stream: true")
    return bool(options.get("include_usage"))


class Kind(NamedTuple):
    """The kind of a field's values."""

    types: tuple[type, ...]
    words: str


_TEXT: Final = Kind((str,), "a text")
_COUNT: Final = Kind((int,), "a whole number")
_NUMBER: Final = Kind((int, float), "a number")
_FLAG: Final = Kind((bool,), "true or false")
_OBJECT: Final = Kind((dict,), "an object")
_LIST: Final = Kind((list,), "a list")

KINDS: Final[Mapping[str, Kind]] = {
    **dict.fromkeys(
        ("user", "safety_identifier", "prompt_cache_key", "suffix", "reasoning_effort", "verbosity"), _TEXT
    ),
    **dict.fromkeys(("service_tier", "truncation", "text.verbosity", "reasoning.effort", "reasoning.summary"), _TEXT),
    **dict.fromkeys(("n", "best_of", "seed", "max_tokens", "max_completion_tokens", "max_output_tokens"), _COUNT),
    **dict.fromkeys(("temperature", "top_p", "presence_penalty", "frequency_penalty"), _NUMBER),
    **dict.fromkeys(("store", "echo", "background", "parallel_tool_calls"), _FLAG),
    **dict.fromkeys(("metadata", "logit_bias", "response_format", "prediction", "text.format"), _OBJECT),
    **dict.fromkeys(("tools", "functions", "include", "modalities"), _LIST),
    "tool_choice": Kind((str, dict), "a text or an object"),
    "stop": Kind((str, list), "a text or a list of texts"),
}
"""Kinds of the fields that forms share. A method's annotations may ask for more."""

STREAM_OPTIONS: Final = ("include_usage", "include_obfuscation")

SAMPLING: Final[Accepted] = {
    "temperature": (1,),
    "top_p": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "seed": (),
    "stop": ([],),
    "max_tokens": (),
}

TOOLS: Final[Accepted] = {"tools": ([],), "tool_choice": ("auto",), "parallel_tool_calls": (True,)}

TIERS: Final = ("auto", "default")
