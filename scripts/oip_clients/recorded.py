"""The recorded cases against a real Triton: what the tests compare our answers with is what Triton answers."""

from __future__ import annotations

import base64
import contextlib
import json
import re
from http.client import HTTPConnection, HTTPException
from typing import Any, Final

import grpc

from oip_clients import servers
from tests import triton_cases
from tests.triton_cases import Outcome

MEASURED: Final = frozenset({"ns", "last_inference"})
"""Fields of statistics that are others each time."""

ENDING: Final = frozenset({"nd_zero_overflow", "nd_overflow", "nd_overflow_mod"})
"""Cases that end the process of their model, for good."""

LINE: Final = re.compile(r"At:\n  \S*?([^/\s]+/\d+/model\.py)\(\d+\)")
"""The place in a model from which an exception comes."""


def run() -> list[str]:
    """Send all of them; return which are answered otherwise than recorded."""
    with servers.triton():
        wrong = _grpc()
    # Another one: the last calls over gRPC may have ended the first. So may some cases, or the process of their model.
    cases = json.loads((triton_cases.CASES_DIR / "triton_answers.json").read_text())
    waiting = list(cases)
    bad: list[str] = []
    while waiting:
        end = next((at for at, case in enumerate(waiting) if case["name"] in ENDING), len(waiting)) + 1
        with servers.triton():
            bad += _http(waiting[:end])
        waiting = waiting[end:]
    print(f"  HTTP: {len(cases) - len(bad)} of {len(cases)} as recorded", flush=True)
    return wrong + bad


def _grpc() -> list[str]:
    wrong = []
    with grpc.insecure_channel(f"127.0.0.1:{servers.TRITON_GRPC}") as channel:
        for case in triton_cases.GRPC_CASES:
            found, expected = _comparable(triton_cases.ask(channel, case)), _comparable(Outcome.recorded(case))
            if found[0] in {"CANCELLED", "DEADLINE_EXCEEDED"}:  # how much there was before is a matter of time
                found, expected = (found[0], "", found[2][:1]), (expected[0], "", expected[2][:1])
            if found != expected:
                wrong.append(f"gRPC, {case['name']}: {found} for {expected}")
    count = len(triton_cases.GRPC_CASES)
    print(f"  gRPC: {count - len(wrong)} of {count} as recorded", flush=True)
    return wrong


def _http(cases: list[dict[str, Any]]) -> list[str]:
    wrong = []
    for case in cases:
        body = case["text"].encode() if "text" in case else base64.b64decode(case.get("data", ""))
        own = {name.lower(): value for name, value in case.get("headers", {}).items()}
        headers = {"accept-encoding": "identity", "content-length": str(len(body))} | own
        expected = case["answer"].encode() if "answer" in case else base64.b64decode(case.get("answer_data", ""))
        # A connection for each: Triton answers HEAD with a body, behind which it is of no use.
        with contextlib.closing(HTTPConnection("127.0.0.1", servers.TRITON_HTTP, timeout=30)) as connection:
            connection.putrequest(case["method"], case["path"], skip_accept_encoding=True)
            for name, value in headers.items():
                connection.putheader(name, value)
            connection.endheaders(body)
            try:
                answer = connection.getresponse()
                found = answer.read()
            except (HTTPException, OSError) as error:
                wrong.append(f"HTTP, {case['name']}: {error!r}")
                continue
        is_packed = answer.getheader("content-encoding") is not None  # its bytes are not those of another time
        if answer.status != case["status"] or (expected and not is_packed and found != expected):
            wrong.append(f"HTTP, {case['name']}: {answer.status} {found[:300]!r} for {case['status']}")
    return wrong


def _comparable(outcome: Outcome) -> tuple[str, str, list[Any]]:
    message = LINE.sub(r"At:\n  \1", outcome.message)
    return outcome.code, message, [_without_figures(each) for each in outcome.answers]


def _without_figures(told: Any) -> Any:
    if isinstance(told, list):
        return [_without_figures(each) for each in told]
    if isinstance(told, dict):
        return {name: _without_figures(each) for name, each in told.items() if name not in MEASURED}
    return told
