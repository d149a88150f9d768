"""OpenAI's forms against OpenAI's own Python client, without a server."""

from __future__ import annotations

import json
import re
import string
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import hypothesis
import pytest
from hypothesis import strategies as st

from atomr_mp import errors
from atomr_mp.protocol.messages.devices import MethodInfo
from atomr_mp.serve.openai import chat, completions, refusals, responses
from atomr_mp.serve.openai.declared import method_of
from atomr_mp.serve.openai.fields import Fields
from atomr_mp.serve.openai.parts import TextAnswer
from atomr_mp.serve.openai.text_calls import DONE, Asked, Writer
from atomr_mp.serve.problems import Problem
from atomr_mp.serve.values import schemas
from tests.openai_shapes import events_of, strictly

pytest.importorskip("openai")

from openai import omit
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent

from tests.in_turn import in_turn

FORMS: Final = {"chat": chat, "completions": completions, "responses": responses}

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 2)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
    | st.sampled_from(["auto"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def plan(*parameters: str) -> schemas.ArgumentPlan:
    """Return the plan of a method with these parameters behind its first."""
    info = MethodInfo("say", ["what", *parameters], idempotent=True, deadline_s=None, doc="")
    return schemas.plan_of("Model.say", info)


def request(form: str, **more: Any) -> dict[str, Any]:
    """Return the smallest request of a form, and more."""
    what: dict[str, dict[str, Any]] = {
        "chat": {"messages": [{"role": "user", "content": "a"}]},
        "completions": {"prompt": "a"},
    }
    return {"model": "Model", **what.get(form, {"input": "a"}), **more}


# --- what a method says ------------------------------------------------------------------------------------------

counts = st.integers(0, 10**6)
details = st.fixed_dictionaries({}, optional={"cached_tokens": counts})
usages = st.fixed_dictionaries(
    {},
    optional={
        "prompt_tokens": counts,
        "completion_tokens": counts,
        "prompt_tokens_details": details,
        "completion_tokens_details": st.fixed_dictionaries({}, optional={"reasoning_tokens": counts}),
    },
)
finishes = st.sampled_from(["stop", "length", "content_filter", "tool_calls"])


@st.composite
def said(draw: st.DrawFn) -> list[Any]:
    """Return what a method may yield, with texts and calls of tools in pieces, in any order."""
    parts: list[Any] = []
    begun = 0
    for _ in range(draw(st.integers(0, 8))):
        match draw(st.integers(0, 4)):
            case 0:
                parts.append(draw(st.text(max_size=4)))
            case 1:
                parts.append({"content": draw(st.none() | st.text(max_size=4)), "usage": draw(st.none() | usages)})
            case 2:
                arguments = draw(st.sampled_from(["", '{"a": ', {"a": [1]}, {}]))
                function = {"name": draw(st.text(string.ascii_letters, min_size=1)), "arguments": arguments}
                named = {"id": f"call_{begun}"} if draw(st.booleans()) else {}
                parts.append({"tool_calls": [{"type": "function", "function": function, **named}]})
                begun += 1
            case 3 if begun:
                index = draw(st.integers(0, begun - 1))
                parts.append({"tool_calls": [{"index": index, "function": {"arguments": draw(st.text(max_size=4))}}]})
            case 4:
                parts.append({"finish_reason": draw(finishes)})
    return parts


results = st.none() | finishes | st.fixed_dictionaries({}, optional={"usage": usages, "finish_reason": finishes})


def writer_of(form: str, **more: Any) -> Writer:
    """Return the writer of a request's answer."""
    writer: Writer = FORMS[form].read(request(form, **more), plan()).writer
    return writer


def streamed(writer: Writer, parts: list[Any], result: Any) -> tuple[bytes, TextAnswer]:
    """Return all that a stream writes, and what was said."""
    answer = TextAnswer(keeps=writer.keeps)
    written = b"".join(writer.part(answer.take(part)) for part in parts)
    written += writer.part(answer.end(result)) + writer.end(answer)
    return written, answer


def whole(parts: list[Any], result: Any) -> TextAnswer:
    """Return an answer that is gathered before it is written."""
    answer = TextAnswer()
    for part in parts:
        answer.take(part)
    answer.end(result)
    return answer


def same(calls: Any) -> list[tuple[str, str]]:
    """Return calls of tools without their ids, which may have been made."""
    return [(call.function.name, call.function.arguments) for call in calls or ()]


@hypothesis.given(parts=said(), result=results, tells=st.booleans())
def test_a_chat_s_chunks_come_together_as_the_whole_answer(parts: list[Any], result: Any, *, tells: bool) -> None:
    """The client takes each chunk strictly, and gathers from them the text, calls, reason and usage of the whole."""
    options = {"stream": True, "stream_options": {"include_usage": tells}}
    written, _ = streamed(writer_of("chat", **options), parts, result)
    assert written.endswith(DONE)
    state: Any = ChatCompletionStreamState()
    values = [value for _, value in events_of(written)]
    for value in values:
        state.handle_chunk(strictly(ChatCompletionChunk, value))
    assert ["usage" in value for value in values] == [tells] * len(values)
    assert [not value["choices"] for value in values] == [False] * (len(values) - tells) + [True] * tells
    assert values[0]["choices"][0]["delta"]["role"] == "assistant"
    one = strictly(ChatCompletion, writer_of("chat").whole([whole(parts, result)]))
    joined, (choice,) = state.current_completion_snapshot, one.choices
    (gathered,) = joined.choices
    assert gathered.finish_reason == choice.finish_reason
    assert (gathered.message.content or "") == (choice.message.content or "")
    assert same(gathered.message.tool_calls) == same(choice.message.tool_calls)
    if tells:
        assert joined.usage == one.usage


@hypothesis.given(said(), results)
def test_a_completion_s_chunks_come_together_as_the_whole_answer(parts: list[Any], result: Any) -> None:
    """The client takes each chunk strictly, but for the reason, which its own type has only at the end."""
    written, _ = streamed(writer_of("completions", stream=True), parts, result)
    assert written.endswith(DONE)
    *chunks, last = [value for _, value in events_of(written)]
    one = strictly(Completion, writer_of("completions").whole([whole(parts, result)]))
    assert strictly(Completion, last).choices[0].finish_reason == one.choices[0].finish_reason
    for chunk in chunks:
        assert chunk["choices"][0].pop("finish_reason") is None
        strictly(Completion, {**chunk, "choices": [{**chunk["choices"][0], "finish_reason": "stop"}]})
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == one.choices[0].text


@hypothesis.given(said(), results)
def test_a_response_s_events_build_the_whole_response(parts: list[Any], result: Any) -> None:
    """The client takes each event strictly, numbered from 0; its items are those of the last event's response."""
    written, _ = streamed(writer_of("responses", stream=True), parts, result)
    state: Any = ResponseStreamState(input_tools=[], text_format=omit)
    kinds = []
    built: dict[int, Any] = {}
    texts: dict[str, str] = {}
    for at, (name, value) in enumerate(events_of(written)):
        assert (value["sequence_number"], value["type"]) == (at, name)
        event = strictly(ResponseStreamEvent, value)
        state.handle_event(event)
        kinds.append(event.type)
        if event.type in {"response.output_text.delta", "response.function_call_arguments.delta"}:
            texts[event.item_id] = texts.get(event.item_id, "") + event.delta
        if event.type == "response.output_item.done":
            built[event.output_index] = event.item
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] in {"response.completed", "response.incomplete"}
    last = event.response
    assert [built[at] for at in range(len(built))] == last.output
    for item in last.output:
        given = item.arguments if item.type == "function_call" else item.content[0].text
        assert texts.get(item.id, "") == given
    one = strictly(Response, writer_of("responses").whole([whole(parts, result)]))
    assert (one.output_text, one.status, one.usage) == (last.output_text, last.status, last.usage)
    assert (one.incomplete_details is None) == (one.status == "completed")


@hypothesis.given(said(), results)
def test_what_a_response_says_may_be_sent_back(parts: list[Any], result: Any) -> None:
    """Its items, as the client has them, are input of the next request, and say the same there."""
    one = strictly(Response, writer_of("responses").whole([whole(parts, result)]))
    items = [item.model_dump(mode="json") for item in one.output]
    (given,) = responses.read({"model": "Model", "input": items}, plan()).calls
    messages = given["what"]
    assert "".join(message["content"] or "" for message in messages) == one.output_text
    calls = [call for message in messages for call in message.get("tool_calls", ())]
    told = [(call.call_id, call.name, call.arguments) for call in one.output if call.type == "function_call"]
    assert [(call["id"], *call["function"].values()) for call in calls] == told
    assert {message["role"] for message in messages} == {"assistant"}


@hypothesis.given(json_values | st.dictionaries(st.sampled_from(["content", "tool_calls", "usage", "x"]), json_values))
def test_whatever_a_method_says_is_taken_or_named_as_wrong(given: Any) -> None:
    """What is taken is written as the client takes it; anything else is an error that says what is wrong."""
    answer = TextAnswer()
    try:
        answer.take(given)
    except errors.Unsupported as error:
        assert (error.maybe_executed, str(error)[:10]) == (True, "the method")  # noqa: PT017 - not all are wrong
        return
    strictly(ChatCompletion, writer_of("chat").whole([answer]))
    strictly(Response, writer_of("responses").whole([answer]))
    strictly(Completion, writer_of("completions").whole([answer]))


arguments_of_calls = st.none() | st.dictionaries(st.text(max_size=3), json_values, max_size=2)


def said_in(form: str, result: Any, *, streams: bool) -> list[Any]:
    """Return a form's calls of tools, as the client gathers them: of a method that yields, or of one that returns."""
    answer = TextAnswer()
    if not streams:
        answer.take_all(result)
        body = writer_of(form).whole([answer])
        calls = body["output"] if form == "responses" else body["choices"][0]["message"].get("tool_calls", ())
    else:
        written, _ = streamed(writer_of(form, stream=True), [result], None)
        values = [value for _, value in events_of(written)]
        if form == "responses":
            calls = values[-1]["response"]["output"]
        else:
            state: Any = ChatCompletionStreamState()
            for value in values:
                state.handle_chunk(strictly(ChatCompletionChunk, value))
            calls = state.current_completion_snapshot.model_dump()["choices"][0]["message"]["tool_calls"]
    return [each.get("function", each) for each in calls]


@hypothesis.given(st.lists(arguments_of_calls, min_size=1, max_size=3), st.sampled_from(["chat", "responses"]))
def test_the_arguments_of_a_call_arrive_as_json_that_says_the_same(given: list[Any], form: str) -> None:
    """Also those of a tool that takes none; whether the method yields or returns, whole or streamed."""
    calls = [{"function": {"name": "f", **({} if each is None else {"arguments": each})}} for each in given]
    for streams in (False, True):
        found = said_in(form, {"tool_calls": calls}, streams=streams)
        assert [json.loads(each["arguments"]) for each in found] == [each or {} for each in given]


NOTHINGS: Final[list[Any]] = [0, 0.0, False, "", [], {}]
"""Values that are false where they are asked for their truth, and are values all the same."""


@pytest.mark.parametrize(
    ("place", "fit"),
    [
        ("content", [""]),
        ("finish_reason", []),
        ("usage", [{}]),
        ("tool_calls", [[]]),
        ("tool_calls.arguments", ["", {}]),
        ("tool_calls.id", [""]),
        ("tool_calls.index", [0]),
        ("tool_calls.function", []),
        ("result", [{}]),
    ],
)
def test_a_value_of_a_wrong_kind_is_told_though_it_is_empty(place: str, fit: list[Any]) -> None:
    """An empty value is not taken for a missing one, which is None."""
    for value in NOTHINGS:
        answer = TextAnswer()
        call = {"function": {"name": "f"}}
        where, _, inner = place.partition(".")
        if inner:
            within = call["function"] if inner == "arguments" else call
            within[inner] = value
        said = {where: [call] if inner else value}
        if any(value == each and type(value) is type(each) for each in fit):
            answer.end(value) if place == "result" else answer.take_all(said)
            continue
        with pytest.raises(errors.Unsupported):
            answer.end(value) if place == "result" else answer.take_all(said)


@pytest.mark.parametrize("result", ["weird", "", 0, [], "Stop", 1.5, True])
def test_a_result_behind_the_parts_that_is_no_reason_is_told(result: Any) -> None:
    """By the same words as a reason in a map."""
    with pytest.raises(errors.Unsupported, match="finish_reason"):
        TextAnswer().end(result)


def test_a_method_that_goes_on_for_ever_does_not_fill_the_memory() -> None:
    """What has to be kept until the end is bounded; chunks of a stream are not."""
    chunks = TextAnswer(keeps=False)
    kept, calls = TextAnswer(), TextAnswer(keeps=False)
    text = "x" * 2**20
    calls.take({"tool_calls": [{"function": {"name": "f"}}]})
    for _ in range(16):
        kept.take(text)
        calls.take({"tool_calls": [{"index": 0, "function": {"arguments": text}}]})
    for _ in range(20):
        chunks.take(text)
    for full, more in ((kept, "x"), (calls, {"tool_calls": [{"index": 0, "function": {"arguments": "x"}}]})):
        with pytest.raises(errors.Unsupported, match="16777216 characters"):
            full.take(more)


# --- what a client asks for --------------------------------------------------------------------------------------

ALL_FIELDS: Final = {"chat": chat.FIELDS, "completions": completions.FIELDS, "responses": responses.FIELDS}


def defaults() -> list[Any]:
    """Return each field of each form with each value that asks for nothing."""
    return [
        pytest.param(form, name, value, id=f"{form}-{name}-{value}")
        for form, fields in ALL_FIELDS.items()
        for name, values in [
            *fields.fixed.items(),
            *fields.optional.items(),
            *((each, ({"a": "b"} if each == "metadata" else "x",)) for each in sorted(fields.harmless)),
        ]
        if "." not in name
        for value in values
    ]


@in_turn("form, name, value", defaults())
def test_fields_that_ask_for_nothing_are_accepted(form: str, name: str, value: Any) -> None:
    """OpenAI's default values are, by methods that know nothing of them; null is as if the field were not there."""
    for given in (value, None):
        (call,) = FORMS[form].read(request(form, **{name: given}), plan()).calls
        assert list(call) == ["what"]


def test_the_page_names_every_value_that_asks_for_nothing() -> None:
    """Of the fields that a method may have parameters for; the others have no such value."""
    page = (Path(__file__).parents[3] / "docs" / "openai.md").read_text(encoding="utf-8")
    table = page.partition("| Values that ask for nothing |")[2].partition("\n\n")[0]
    rows = [line.split("|")[1:3] for line in table.splitlines()[2:]]
    named = {name: re.findall("`([^`]+)`", right) for left, right in rows for name in re.findall("`([^`]+)`", left)}
    for fields in ALL_FIELDS.values():
        for name, accepted in fields.optional.items():
            told = [json.loads(each) for each in named.pop(name, [])]
            assert all(each in told for each in accepted)
            assert bool(told) == bool(accepted)
            named[name] = [json.dumps(each) for each in told]


@pytest.mark.parametrize("form", sorted(FORMS))
@pytest.mark.parametrize("options", [{}, {"include_usage": False}, {"include_obfuscation": None}])
def test_options_of_a_stream_that_ask_for_nothing_need_none(form: str, options: dict[str, Any]) -> None:
    """An option that is true is refused without a stream; these are not."""
    assert not isinstance(read(form, request(form, stream_options=options), plan()), Problem)


def read(form: str, body: dict[str, Any], of: schemas.ArgumentPlan) -> Asked | Problem:
    """Return what a request asks for, or its refusal, which has OpenAI's form."""
    try:
        asked: Asked = FORMS[form].read(body, of)
    except Problem as problem:
        told = refusals.describe(problem, "id", debug=False)
        kind = (problem.status, told["type"], told["param"])
        assert kind == (400, "invalid_request_error", problem.facts["param"])  # noqa: PT017 - not all are refused
        return problem
    return asked


@hypothesis.given(
    form=st.sampled_from(sorted(FORMS)),
    name=st.sampled_from(sorted({name for fields in ALL_FIELDS.values() for name in (*fields.fixed, *fields.optional)}))
    | st.text(max_size=8),
    value=json_values,
    has=st.booleans(),
)
def test_a_field_is_given_to_the_method_or_changes_nothing_or_is_named(
    form: str, name: str, value: Any, *, has: bool
) -> None:
    """Nothing that a client asks for is ignored without a word."""
    fields: Fields = ALL_FIELDS[form]
    hypothesis.assume(name not in fields.used and "." not in name)
    asked = read(form, request(form, **{name: value}), plan(*([name] if has else [])))
    if isinstance(asked, Problem):
        assert asked.facts["param"].startswith(name[:100])
        return
    (call,) = asked.calls
    if name in call and name != "what":
        assert has
        assert name not in fields.fixed
    elif value is not None and name not in fields.harmless:
        accepted = [*fields.fixed.get(name, ()), *fields.optional.get(name, ()), "none"]
        assert value in accepted


@hypothesis.settings(max_examples=50)
@hypothesis.given(
    st.sampled_from(sorted(FORMS)),
    st.dictionaries(
        st.sampled_from(
            [
                "messages",
                "prompt",
                "input",
                "instructions",
                "stream",
                "stream_options",
                "text",
                "reasoning",
                "tools",
                "tool_choice",
                "metadata",
            ]
        ),
        json_values
        | st.lists(
            st.fixed_dictionaries(
                {},
                optional={
                    "type": st.sampled_from(["message", "function_call", "function_call_output", "function", "x"]),
                    "role": st.sampled_from(["user", "assistant", "tool"]),
                    "content": json_values | st.lists(st.fixed_dictionaries({"type": st.just("input_text")})),
                    "call_id": json_values,
                    "output": json_values,
                },
            )
        ),
    ),
)
def test_any_request_is_read_or_refused(form: str, body: dict[str, Any]) -> None:
    """A refusal is 400 and names a field; nothing else is ever raised."""
    asked = read(form, request(form) | body, plan("tools"))
    if isinstance(asked, Problem):
        assert asked.facts["param"].partition("[")[0].partition(".")[0] in request(form) | body
    else:
        assert asked.calls
        assert all("what" in call for call in asked.calls)


@pytest.mark.parametrize(
    ("form", "more", "param"),
    [
        ("chat", {"messages": []}, "messages"),
        ("chat", {"messages": None}, "messages"),
        ("chat", {"messages": ["a"]}, "messages[0]"),
        ("chat", {"stream": 1}, "stream"),
        ("chat", {"stream_options": {"include_usage": True}}, "stream_options"),
        ("chat", {"stream": True, "stream_options": {"usage": True}}, "stream_options.usage"),
        ("chat", {"n": 2}, "n"),
        ("chat", {"n": True}, "n"),
        ("chat", {"temperature": "warm"}, "temperature"),
        ("chat", {"metadata": {"a": 1}}, "metadata"),
        ("chat", {"temperature": 0.5}, "temperature"),
        ("chat", {"tools": [{"type": "function"}]}, "tools"),
        ("chat", {"tool_choice": "required"}, "tool_choice"),
        ("chat", {"tools": [], "tool_choice": "none", "max_tokens": 3}, "max_tokens"),
        ("chat", {"sede": 1}, "sede"),
        ("completions", {"prompt": []}, "prompt"),
        ("completions", {"prompt": ["a", 1]}, "prompt[1]"),
        ("completions", {"prompt": ["a", "b"], "stream": True}, "prompt"),
        ("completions", {"echo": True}, "echo"),
        ("responses", {"previous_response_id": "resp_1"}, "previous_response_id"),
        ("responses", {"store": True}, "store"),
        ("responses", {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        ("responses", {"input": [{"type": "reasoning"}]}, "input[0].type"),
        ("responses", {"input": [{"role": "tool", "content": "a"}]}, "input[0].role"),
        ("responses", {"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ("responses", {"text": {"format": {"type": "json_object"}}}, "text.format"),
        ("responses", {"reasoning": {"effort": "high"}}, "reasoning.effort"),
        ("responses", {"max_output_tokens": 5}, "max_output_tokens"),
    ],
)
def test_a_refusal_names_the_field(form: str, more: dict[str, Any], param: str) -> None:
    """As OpenAI's own errors do, by `param`."""
    with pytest.raises(Problem) as caught:
        FORMS[form].read(request(form, **more), plan())
    assert (caught.value.status, caught.value.facts["param"]) == (400, param)


@pytest.mark.parametrize(
    ("form", "more", "parameter", "value"),
    [
        ("chat", {"max_completion_tokens": 3}, "max_tokens", 3),
        ("chat", {"max_tokens": 3}, "max_completion_tokens", 3),
        ("responses", {"max_output_tokens": 3}, "max_tokens", 3),
        ("responses", {"reasoning": {"effort": "low"}}, "reasoning_effort", "low"),
        (
            "responses",
            {"text": {"format": {"type": "json_schema", "name": "n", "schema": {}}}},
            "response_format",
            {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}},
        ),
        (
            "responses",
            {"tools": [{"type": "function", "name": "f", "parameters": {}}]},
            "tools",
            [{"type": "function", "function": {"name": "f", "parameters": {}}}],
        ),
        (
            "responses",
            {"tools": [{"type": "function", "name": "f"}], "tool_choice": {"type": "function", "name": "f"}},
            "tool_choice",
            {"type": "function", "function": {"name": "f"}},
        ),
        ("chat", {"user": "me"}, "user", "me"),
        ("chat", {"top_k": 3}, "top_k", 3),
    ],
)
def test_a_method_gets_fields_by_its_own_names(form: str, more: dict[str, Any], parameter: str, value: Any) -> None:
    """A method of chats need not know the words of responses."""
    (call,) = FORMS[form].read(request(form, **more), plan(parameter, *more)).calls
    assert call[parameter] == value if parameter in more else True
    (call,) = FORMS[form].read(request(form, **more), plan(parameter, "tools")).calls
    assert call[parameter] == value


echoed = {
    "instructions": st.none() | st.text(max_size=3) | json_values,
    "metadata": st.dictionaries(st.text(max_size=3), st.text(max_size=3)) | json_values,
    "tools": st.lists(
        st.fixed_dictionaries(
            {"type": st.just("function"), "name": st.text(max_size=3) | st.none()},
            optional={"parameters": st.just({}) | json_values, "description": st.text(max_size=3)},
        )
    ),
    **dict.fromkeys(("temperature", "top_p", "user", "max_output_tokens"), json_values),
    **dict.fromkeys(("parallel_tool_calls", "safety_identifier"), json_values),
}


@hypothesis.given(st.fixed_dictionaries({}, optional=echoed))
def test_a_response_repeats_what_was_asked_as_the_client_takes_it(fields: dict[str, Any]) -> None:
    """Strictly: a field of another kind is refused before."""
    asked = read("responses", request("responses") | fields, plan(*(name for name in fields if name != "instructions")))
    if isinstance(asked, Problem):
        assert asked.facts["param"].partition("[")[0] in fields
    else:
        strictly(Response, asked.writer.whole([TextAnswer()]))


def test_a_conversation_becomes_a_chat_s_messages() -> None:
    """Instructions come first; calls of one turn are in one message, and outputs are the tools'."""
    call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
    body = {
        "instructions": "Be brief.",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
            call,
            {**call, "call_id": "c2"},
            {"type": "function_call_output", "call_id": "c1", "output": "5"},
        ],
    }
    (given,) = responses.read(request("responses", **body), plan()).calls
    function = {"type": "function", "function": {"name": "f", "arguments": "{}"}}
    assert given["what"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "ab"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", **function}, {"id": "c2", **function}]},
        {"role": "tool", "tool_call_id": "c1", "content": "5"},
    ]


def test_a_pool_that_starts_has_its_models_soon() -> None:
    """It is asked again, by 503; a model that is not there would be 404, after which clients give up."""
    starting: Any = SimpleNamespace(methods=[], devices=[], is_starting=lambda _: True)
    with pytest.raises(errors.PoolUnreachable):
        method_of(starting, "Model", "chat")
    info: Any = {"method_info": lambda _: plan().info, "is_starting": lambda _: False}
    begun: Any = SimpleNamespace(methods=["Model.say"], devices=[], **info)
    with pytest.raises(Problem) as caught:
        method_of(begun, "Model", "chat")
    assert (caught.value.status, caught.value.facts["param"]) == (404, "model")
