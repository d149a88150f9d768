"""OpenAI's own Python client, with all that its users do first."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.openai_shapes import events_of, strictly
from tests.serving import Server
from tests.support import ACTORS, DEADLINE_S, Ledger, settled

pytest.importorskip("httptools")
pytest.importorskip("openai")

from openai.types import Completion, CreateEmbeddingResponse, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel

openai: Any = pytest.importorskip("openai")

EXAMPLE: Final = ACTORS.parents[1] / "examples" / "ngram.py"

GUIDE: Final = ACTORS.parents[1] / "docs" / "openai.md"

NODE_PROGRAM: Final = ACTORS.parent / "programs" / "openai_client.mjs"

MODELS: Final = f"{ACTORS}/models.py"

TOOL: Final[dict[str, Any]] = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object"}, "strict": False},
}

CALL: Final = {"id": "call_7", "type": "function", "function": {"name": "add", "arguments": '{"a":1}'}}

USAGE: Final = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


@pytest.fixture(scope="module")
def ledger() -> Iterator[Ledger]:
    """Of all tests here."""
    with Ledger() as counting:
        yield counting


@pytest.fixture(scope="module")
def server(ledger: Ledger) -> Iterator[Server]:
    """A server with several models."""
    targets = [*(f"{MODELS}:{name}" for name in ("Plain", "Sized", "Steady")), f"{EXAMPLE}:Ngram"]
    others = [each for target in targets for each in ("--actor", target)]
    with Server(ledger, *others, actor=f"{MODELS}:Scripted") as own:
        yield own


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Any]:
    """OpenAI's own client, with its own retries."""
    with openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key=server.token) as own:
        yield own


def asynchronous(server: Server) -> Any:
    """Return the client for event loops."""
    return openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key=server.token)


def script(**what: Any) -> dict[str, Any]:
    """Return a chat whose last message has a model do something."""
    return {"model": "Scripted", "messages": [{"role": "user", "content": json.dumps(what)}]}


def post(server: Server, path: str, **body: Any) -> Any:
    """Return the answer to a request, without the client."""
    answer = server.ask("POST", f"/v1/{path}", json.dumps(body).encode(), {"content-type": "application/json"})
    assert answer.status == 200, answer.body
    return answer


def test_every_answer_is_as_the_client_s_types_say(server: Server) -> None:
    """Strictly: no field is missing, of another type, or unknown to them."""
    tools = {"parts": ["a", {"tool_calls": [CALL]}], "result": {"usage": USAGE}}
    for given in (script(**tools), {**script(result="whole"), "model": "Plain"}):
        strictly(ChatCompletion, post(server, "chat/completions", **given).json())
        options = {"stream": True, "stream_options": {"include_usage": True}}
        for _, value in events_of(post(server, "chat/completions", **given, **options).body):
            strictly(ChatCompletionChunk, value)
        text = given["messages"][0]["content"]
        strictly(Response, post(server, "responses", model=given["model"], input=text).json())
        for _, value in events_of(post(server, "responses", model=given["model"], input=text, stream=True).body):
            strictly(ResponseStreamEvent, value)
    strictly(Completion, post(server, "completions", model="Plain", prompt=["a", "b"]).json())
    strictly(CreateEmbeddingResponse, post(server, "embeddings", model="Plain", input="a").json())
    listed = server.ask("GET", "/v1/models").json()
    assert listed["object"] == "list"
    assert [strictly(Model, each).id for each in listed["data"]] == ["Ngram", "Plain", "Scripted", "Sized", "Steady"]


def test_usage_is_what_the_method_counts(client: Any) -> None:
    """In a whole answer, in the last chunk of a stream if asked for, and in a response; 0 if it counts nothing."""
    given = script(parts=["one ", "two"], result={"usage": {**USAGE, "prompt_tokens_details": {"cached_tokens": 1}}})
    whole = client.chat.completions.create(**given)
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens, whole.usage.total_tokens) == (3, 2, 5)
    assert whole.usage.prompt_tokens_details.cached_tokens == 1
    options = {"include_usage": True}
    *chunks, last = client.chat.completions.create(**given, stream=True, stream_options=options)
    assert [chunk.usage for chunk in chunks] == [None] * len(chunks)
    assert (last.choices, last.usage) == ([], whole.usage)
    assert all(chunk.usage is None for chunk in client.chat.completions.create(**given, stream=True))
    response = client.responses.create(model="Scripted", input=given["messages"][0]["content"])
    counted = response.usage
    assert (counted.input_tokens, counted.output_tokens, counted.total_tokens) == (3, 2, 5)
    assert counted.input_tokens_details.cached_tokens == 1
    *_, last = client.chat.completions.create(
        model="Steady", messages=[{"role": "user", "content": "a b"}], stream=True, stream_options=options
    )
    assert last.usage.total_tokens == 0


def test_tools_go_to_the_method_and_its_calls_come_back(client: Any) -> None:
    """Whole, as deltas that the client joins, and with the tools' outputs sent back as messages."""
    pieces = [
        {"tool_calls": [{**CALL, "function": {"name": "add", "arguments": '{"a"'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": ":1}"}}]},
        {"tool_calls": [{"function": {"name": "add", "arguments": {"a": 2}}}]},
    ]
    given = script(parts=pieces) | {"tools": [TOOL], "tool_choice": "auto"}
    whole = client.chat.completions.create(**given)
    message = whole.choices[0].message
    assert (message.content, whole.choices[0].finish_reason) == (None, "tool_calls")
    first, second = message.tool_calls
    assert (first.id, first.function.name, first.function.arguments) == ("call_7", "add", '{"a":1}')
    assert second.id.startswith("call_")
    with client.chat.completions.stream(**given) as stream:
        joined = stream.get_final_completion().choices[0]
    calls = [(call.function.name, call.function.arguments) for call in joined.message.tool_calls]
    assert (calls, joined.finish_reason) == ([("add", '{"a":1}'), ("add", '{"a":2}')], "tool_calls")
    messages = [
        {"role": "user", "content": "1 + 1"},
        message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": "call_7", "content": "2"},
        {"role": "user", "content": "what"},
    ]
    choice = {"type": "function", "function": {"name": "add"}}
    told = client.chat.completions.create(model="Scripted", messages=messages, tools=[TOOL], tool_choice=choice)
    seen = json.loads(told.choices[0].message.content)
    assert (seen["messages"], seen["tools"], seen["tool_choice"]) == (messages, [TOOL], choice)
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="Steady", messages=messages, tools=[TOOL])
    assert caught.value.param == "tools"


def test_responses_answer_with_text_and_calls(client: Any) -> None:
    """Whole, as events, and parsed; instructions come as the system's, and items of an answer may be sent back."""
    text = json.dumps({"parts": ["one ", "two", {"tool_calls": [CALL]}], "result": {"usage": USAGE}})
    whole = client.responses.create(model="Scripted", input=text, store=False)
    assert (whole.output_text, whole.status, whole.model) == ("one two", "completed", "Scripted")
    assert whole.to_dict()["store"] is False
    with client.responses.stream(model="Scripted", input=text) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert kinds.count("response.output_text.delta") == 2
    assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")
    assert [(item.type, item.status) for item in final.output] == [
        ("message", "completed"),
        ("function_call", "completed"),
    ]
    assert final.usage.total_tokens == 5
    conversation = [
        {"role": "user", "content": [{"type": "input_text", "text": "1 + 1"}]},
        *(item.to_dict() for item in whole.output),
        {"type": "function_call_output", "call_id": "call_7", "output": "2"},
        {"role": "user", "content": "what"},
    ]
    tool = {"type": "function", **TOOL["function"]}
    told = client.responses.create(
        model="Scripted", input=conversation, instructions="Be brief.", tools=[tool], max_output_tokens=9
    )
    seen = json.loads(told.output_text)
    assert [message["role"] for message in seen["messages"]] == ["system", "user", "assistant", "tool", "user"]
    assert seen["messages"][2]["tool_calls"] == [CALL]
    assert (seen["tools"], seen["max_tokens"]) == ([TOOL], 9)
    cut = client.responses.create(model="Scripted", input=json.dumps({"parts": ["a"], "result": "length"}))
    assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")


def test_a_schema_for_the_answer_goes_to_the_method(client: Any) -> None:
    """The client's `parse` reads the answer by it, in chats and responses."""

    class Sum(BaseModel):
        total: int

    said = json.dumps({"parts": ['{"total"', ": 3}"]})
    parsed = client.responses.parse(model="Scripted", input=said, text_format=Sum)
    assert parsed.output_parsed == Sum(total=3)
    chat = client.chat.completions.parse(
        model="Scripted", messages=[{"role": "user", "content": said}], response_format=Sum
    )
    assert chat.choices[0].message.parsed == Sum(total=3)
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.parse(model="Steady", input="a", text_format=Sum)
    assert caught.value.param == "text.format"


def test_completions_are_whole_or_in_parts(client: Any) -> None:
    """With a choice for each prompt, and the reason of the end."""
    prompt = json.dumps({"parts": ["one ", "two"], "result": {"finish_reason": "length", "usage": USAGE}})
    whole = client.completions.create(model="Scripted", prompt=prompt)
    assert (whole.choices[0].text, whole.choices[0].finish_reason) == ("one two", "length")
    assert whole.usage.total_tokens == 5
    *chunks, last = client.completions.create(
        model="Scripted", prompt=prompt, stream=True, stream_options={"include_usage": True}
    )
    assert [chunk.choices[0].text for chunk in chunks] == ["one ", "two", ""]
    assert (chunks[-1].choices[0].finish_reason, last.usage) == ("length", whole.usage)
    many = client.completions.create(model="Plain", prompt=["a", "bb"])
    assert [(choice.index, choice.text) for choice in many.choices] == [(0, "a!"), (1, "bb!")]
    assert many.usage.prompt_tokens == 3
    assert client.completions.create(model="Plain", prompt=[1, 2]).choices[0].text == "[1, 2]!"
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="Scripted", prompt=["a", "b"])
    assert caught.value.param == "prompt"


def test_embeddings_have_the_client_s_encoding_and_its_size(client: Any) -> None:
    """Base64 unless the client asks for numbers; a size that the method takes, or has."""
    found = client.embeddings.create(model="Plain", input=["a", "bb"])
    assert [each.embedding for each in found.data] == [[1.0, 0.5, -1.0], [2.0, 0.5, -1.0]]
    assert (found.usage.prompt_tokens, found.model) == (3, "Plain")
    assert client.embeddings.create(model="Plain", input=["a"], encoding_format="float").data == found.data[:1]
    assert client.embeddings.create(model="Plain", input=[[1, 2]], dimensions=3).data[0].embedding[0] == 2.0
    assert len(client.embeddings.create(model="Sized", input="a", dimensions=7).data[0].embedding) == 7
    with pytest.raises(openai.BadRequestError, match="have 3 dimensions") as caught:
        client.embeddings.create(model="Plain", input="a", dimensions=4)
    assert caught.value.param == "dimensions"


def test_errors_have_openai_s_form(client: Any, ledger: Ledger) -> None:
    """The class by the status, and the field by `param`; a request that may have run is not sent again."""
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(**script(parts=[]), logit_bias={"1": 5})
    assert (refused.value.param, refused.value.type) == ("logit_bias", "invalid_request_error")
    with pytest.raises(openai.BadRequestError, match="temperature is a number") as warm:
        client.chat.completions.create(**script(parts=[]), temperature="warm")
    assert (warm.value.code, warm.value.param) == ("invalid_type", "temperature")
    with pytest.raises(openai.BadRequestError, match="at `tools"):  # by the method's own annotations
        client.chat.completions.create(**script(parts=[]), tools=["a"])
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(**script() | {"model": "Scripte"})
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.NotFoundError, match="nothing at /v1/images"):
        client.images.generate(prompt="a")
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve("resp_1")
    with pytest.raises(openai.AuthenticationError) as stranger:
        client.with_options(api_key="x" * 20).models.list()
    assert stranger.value.type == "invalid_request_error"
    for stream in (False, True):
        with pytest.raises(openai.InternalServerError, match="on purpose") as failed:
            client.chat.completions.create(**script(fail="on purpose", tag=f"failed-{stream}"), stream=stream)
        assert (failed.value.code, failed.value.type) == ("actor_failed", "server_error")
        assert ledger.runs().count(f"closed-failed-{stream}") == 1
    with pytest.raises(openai.APIError, match="on purpose"):
        list(client.chat.completions.create(**script(parts=["a"], fail="on purpose"), stream=True))
    *_, last = client.responses.create(
        model="Scripted", input=json.dumps({"parts": ["a"], "fail": "on purpose"}), stream=True
    )
    assert (last.type, last.response.status) == ("response.failed", "failed")
    assert "on purpose" in last.response.error.message
    with pytest.raises(openai.InternalServerError, match="'text'; it may have content"):
        client.chat.completions.create(**script(parts=[{"text": "a"}]))


def test_who_has_waited_long_enough_ends_the_call(client: Any, ledger: Ledger) -> None:
    """The client's timeout ends the call; so does closing a stream, or cancelling its task."""
    with ledger.gate("slow") as gate:
        hasty = client.with_options(timeout=2.0, max_retries=0)  # the call certainly runs by then
        with pytest.raises(openai.APITimeoutError):
            hasty.chat.completions.create(**script(gate=gate.path, forever=True, tag="slow"))
        gate.wait()
        gate.open()
        assert settled(lambda: "closed-slow" in ledger.runs())
    with client.chat.completions.create(**script(forever=True, tag="left"), stream=True) as stream:
        assert next(stream).choices[0].delta.content == "and so on "
    assert settled(lambda: "closed-left" in ledger.runs())
    with client.responses.create(
        model="Scripted", input=json.dumps({"forever": True, "tag": "response"}), stream=True
    ) as stream:
        assert next(stream).type == "response.created"
    assert settled(lambda: "closed-response" in ledger.runs())


def test_the_client_for_event_loops_does_the_same(server: Server, ledger: Ledger) -> None:
    """Many at a time, whole and in parts; a task that is cancelled ends its stream."""

    async def use() -> None:
        async with asynchronous(server) as client:
            create = client.chat.completions.create
            answers = await asyncio.gather(*(create(**script(parts=[f"{at}"])) for at in range(20)))
            assert [answer.choices[0].message.content for answer in answers] == [str(at) for at in range(20)]
            stream = await create(**script(parts=["a", "b"], result="length"), stream=True)
            chunks = [chunk.choices[0] async for chunk in stream]
            assert [chunk.delta.content for chunk in chunks] == ["a", "b", None]
            assert chunks[-1].finish_reason == "length"
            assert len((await client.embeddings.create(model="Plain", input=["a"] * 50)).data) == 50
            async with client.responses.stream(model="Steady", input="one two") as events:
                assert (await events.get_final_response()).output_text == "onetwo"
            begun = asyncio.Event()
            task = asyncio.ensure_future(read(await create(**script(forever=True, tag="task"), stream=True), begun))
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    async def read(stream: AsyncIterator[Any], begun: asyncio.Event) -> None:
        async for _ in stream:
            begun.set()

    async def all_of_it() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await use()

    asyncio.run(all_of_it())
    assert settled(lambda: "closed-task" in ledger.runs())


def test_calls_are_counted_by_method_and_described(client: Any, server: Server) -> None:
    """In the metrics as all calls are, and in the OpenAPI document with the models that answer."""
    client.responses.create(model="Steady", input="a")
    client.completions.create(model="Plain", prompt="a")
    text = server.ask("GET", "/metrics").body.decode()
    for method in ("Steady.chat", "Plain.complete"):
        assert f'atomr_mp_http_call_seconds_count{{code="ok",method="{method}"}}' in text
    paths = server.ask("GET", "/openapi.json").json()["paths"]
    models = {
        path: described["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"]["model"]["enum"]
        for path, described in paths.items()
        if path.startswith("/v1/") and "post" in described
    }
    chats = ["Ngram", "Plain", "Scripted", "Steady"]
    assert models == {
        "/v1/chat/completions": chats,
        "/v1/completions": ["Ngram", "Plain", "Scripted"],
        "/v1/embeddings": ["Plain", "Sized"],
        "/v1/responses": chats,
    }


def test_the_guide_s_program_reads_the_example_s_text(server: Server) -> None:
    """As its reader runs it: with the server's address and token in the environment."""
    programs = re.findall(
        r"^```py\n(from openai import .*?)^```$", GUIDE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    variables = {"OPENAI_BASE_URL": f"http://127.0.0.1:{server.port}/v1", "OPENAI_API_KEY": server.token}
    done = subprocess.run(
        [sys.executable, "-c", *programs],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"\n[1-9]\d* words\n", done.stdout)


def test_the_example_says_the_same_by_the_same_seed(client: Any) -> None:
    """Whole and in parts, and it counts its words."""
    given = {"model": "Ngram", "prompt": "The value of", "max_tokens": 12, "seed": 3}
    whole = client.completions.create(**given)
    parts = [chunk.choices[0].text for chunk in client.completions.create(**given, stream=True)]
    assert "".join(parts) == whole.choices[0].text
    assert whole.usage.completion_tokens == len(parts) - 1
    assert whole.usage.prompt_tokens == 3
    assert (whole.choices[0].finish_reason == "length") == (len(parts) - 1 == 12)


@pytest.mark.skipif(shutil.which("npm") is None or shutil.which("node") is None, reason="needs Node and npm")
def test_the_client_for_node_does_the_same(server: Server, tmp_path: Path) -> None:
    """Chats, tools, responses, completions, embeddings, errors and a stream that is left, with the newest version."""
    install = ["npm", "install", "--prefix", tmp_path, "--no-audit", "--no-fund", "--ignore-scripts", "openai"]
    installed = subprocess.run(
        [*map(str, install)], capture_output=True, text=True, timeout=5 * DEADLINE_S, check=False
    )
    if installed.returncode:
        pytest.skip(f"npm cannot install OpenAI's client here: {installed.stderr[-200:]}")
    program = tmp_path / NODE_PROGRAM.name
    shutil.copy(NODE_PROGRAM, program)
    variables = {"OPENAI_BASE_URL": f"http://127.0.0.1:{server.port}/v1", "OPENAI_API_KEY": server.token}
    done = subprocess.run(
        ["node", str(program)],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["all is well"]), done.stderr
