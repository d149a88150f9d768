"""What a method of text returns or yields: text, or an object with OpenAI's names. Pure."""

from __future__ import annotations

import secrets
from typing import Any, Final, NamedTuple

from atomr_mp import errors
from atomr_mp.protocol.words import did_you_mean
from atomr_mp.serve.openai import usage
from atomr_mp.serve.values.results import encode_json

FINISHES: Final = ("stop", "length", "content_filter", "tool_calls")

NAMES: Final = ("content", "tool_calls", "finish_reason", "usage")

MOST_CHARS: Final = 2**24
"""Most characters of an answer that are kept until its end: a method may go on for ever."""

MOST_CALLS: Final = 128
"""Most calls of tools in an answer, as many as OpenAI has tools in a request."""

NO_ARGUMENTS: Final = "{}"
"""The arguments of a call of a tool that has none, as JSON."""


class ToolCall:
    """A call of a tool that a method asks for.

    Args:
        index: Its place among the answer's calls.
        id: Its id, which the client gives back with the tool's output.
        name: The tool's.
    """

    __slots__ = ("_pieces", "id", "index", "name")

    def __init__(self, index: int, id: str, name: str) -> None:  # noqa: A002 - the form's own word
        self.index: Final = index
        self.id: Final = id
        self.name: Final = name
        self._pieces: Final[list[str]] = []

    @property
    def arguments(self) -> str:
        """JSON, as far as it has come."""
        return "".join(self._pieces)

    def add(self, arguments: str) -> None:
        """Add to the arguments."""
        self._pieces.append(arguments)

    def whole(self) -> dict[str, Any]:
        """Return the call as a chat has it."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


class CallPart(NamedTuple):
    """A part of a call of a tool."""

    call: ToolCall
    arguments: str
    """What is added to the arguments."""
    begins: bool
    """Whether the call begins with this part."""


class AnswerPart(NamedTuple):
    """What is new in a method's part."""

    text: str = ""
    calls: tuple[CallPart, ...] = ()


class TextAnswer:
    """A method's answer, as far as it has come.

    Args:
        keeps: Whether to keep the texts. A stream of chunks has no use for them.
    """

    def __init__(self, *, keeps: bool = True) -> None:
        self._texts: Final[list[str]] = []
        self._keeps: Final = keeps
        self._chars = 0
        self._finish = ""
        self.calls: Final[list[ToolCall]] = []
        self.usage: dict[str, Any] = usage.UNKNOWN

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(self._texts)

    @property
    def finish(self) -> str:
        """The reason of the end: the method's; else "tool_calls" if there are any, else "stop"."""
        return self._finish or ("tool_calls" if self.calls else "stop")

    def take(self, given: object) -> AnswerPart:
        """Take in what a method has returned or yielded; return what is new in it.

        Raises:
            Unsupported: It has another form.
        """
        if isinstance(given, str):
            if self._keeps:
                self._keep(given)
            return AnswerPart(given)
        if not isinstance(given, dict):
            raise _wrong(f"a {type(given).__name__}, neither text nor a map")
        for name in given:
            if name not in NAMES:
                raise _wrong(f"a map with {name!r}{did_you_mean(str(name), NAMES)}; it may have {', '.join(NAMES)}")
        self._note(given.get("usage"), given.get("finish_reason"))
        text = given.get("content")
        if text is not None and not isinstance(text, str):
            raise _wrong(f"content that is a {type(text).__name__}, not text")
        calls = given.get("tool_calls")
        if calls is not None and not isinstance(calls, list):
            raise _wrong("tool_calls that are no list")
        if text and self._keeps:
            self._keep(text)
        return AnswerPart(text or "", tuple(map(self._call, calls or ())))

    def _keep(self, text: str) -> None:
        self._count(text)
        self._texts.append(text)

    def _count(self, text: str) -> None:
        """Count what is kept."""
        self._chars += len(text)
        if self._chars > MOST_CHARS:
            raise _wrong(f"more than {MOST_CHARS} characters, which are not kept; ask for a chat's stream")

    def _note(self, counts: object, finish: object) -> None:
        """Note the usage and the reason of the end, where a method tells them; the last ones count."""
        if counts is not None:
            self.usage = usage.checked(counts)
        if finish is not None:
            if finish not in FINISHES:
                raise _wrong(f"the finish_reason {finish!r}; it may be {', '.join(FINISHES)}")
            self._finish = str(finish)

    def take_all(self, given: object) -> AnswerPart:
        """Take in the result of a method that does not stream; return what is in it.

        Raises:
            Unsupported: It has another form.
        """
        return self._completed(self.take(given))

    def end(self, result: object) -> AnswerPart:
        """Take in the result of a method that streams; return what is new in it. Most have none.

        Raises:
            Unsupported: It is neither a reason of the end nor a map of the form.
        """
        if isinstance(result, dict):
            return self._completed(self.take(result))
        if result is not None and not isinstance(result, str):
            raise _wrong(f"a {type(result).__name__} behind its parts; it may be nothing, a finish_reason or a map")
        self._note(None, result)
        return self._completed(AnswerPart())

    def _completed(self, part: AnswerPart) -> AnswerPart:
        """Return the last part, with the arguments of calls that have got none: clients read them as JSON."""
        without = [call for call in self.calls if not call.arguments]
        for call in without:
            call.add(NO_ARGUMENTS)
        return part._replace(calls=(*part.calls, *(CallPart(call, NO_ARGUMENTS, begins=False) for call in without)))

    def _call(self, given: object) -> CallPart:
        """Take in a call of a tool, or a part of one."""
        function = given.get("function") if isinstance(given, dict) else None
        if not isinstance(given, dict) or not isinstance(function, dict):
            raise _wrong("a call of a tool without `function`; it has name and arguments")
        index = given.get("index", len(self.calls))
        if type(index) is not int or not 0 <= index <= len(self.calls):
            raise _wrong(f"the index {index!r} of a call of a tool; the next one is {len(self.calls)}")
        arguments = function.get("arguments")
        if arguments is None:
            arguments = ""
        elif isinstance(arguments, dict):
            arguments = encode_json(arguments).decode()
        if not isinstance(arguments, str):
            raise _wrong("a call of a tool whose arguments are neither JSON as text nor a map")
        begins = index == len(self.calls)
        if begins:
            name, made = function.get("name"), given.get("id")
            if made is None or made == "":
                made = f"call_{secrets.token_hex(12)}"
            if not isinstance(name, str) or not name or not isinstance(made, str):
                raise _wrong("a call of a tool without a name, or with an id that is no text")
            if index >= MOST_CALLS:
                raise _wrong(f"more than {MOST_CALLS} calls of tools")
            self.calls.append(ToolCall(index, made, name))
        call = self.calls[index]
        self._count(arguments)
        call.add(arguments)
        return CallPart(call, arguments, begins)


def _wrong(what: str) -> errors.Unsupported:
    return errors.Unsupported(f"the method has returned {what}", maybe_executed=True)
