"""The same requests to a real Triton server and to ours: statuses and answers, and where they differ on purpose.

`tests/cases/triton_answers.json` has what tritonserver 2.51 (in nvidia-pytriton 0.7.0, Python backend) answered to good
and bad requests. Of refusals it has the status alone: our texts are our own.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import zlib
from collections.abc import Mapping
from typing import Any, Final

import httpx
import pytest

from atomr_mp.serve.application import Application, FrontEndMemory
from atomr_mp.serve.http.access import Access, Tokens
from atomr_mp.serve.http.cors import Cors
from atomr_mp.serve.http.limits import DEFAULT_LIMITS
from atomr_mp.serve.metrics import Counters
from atomr_mp.serve.oip.model_config import files
from atomr_mp.serve.oip.sequences.table import SequenceTable
from atomr_mp.serve.oip.shared_memory.table import RegionTable
from atomr_mp.serve.source import GivenPool
from atomr_mp.serve.watch.shared_sample import SharedSample
from tests.support import ACTORS, Ledger, in_loop
from tests.triton_cases import MODELS

LIKE_TRITON: Final = f"{ACTORS}/like_triton.py:LikeTriton"

CASES: Final[list[dict[str, Any]]] = json.loads((ACTORS.parent / "cases" / "triton_answers.json").read_text())

MORE_EXACT: Final = "our status says more, or less than 500 of a client's mistake"
STRICT: Final = "Triton reads it in another way than it was written, or not at all"
LENIENT: Final = "it can have one meaning only"

OTHER_STATUS: Final[dict[tuple[int, int], str]] = {
    (500, 400): MORE_EXACT,
    (400, 404): MORE_EXACT,
    (400, 413): MORE_EXACT,
    (404, 400): "a place in shared memory without its size is refused before its region is looked for",
    (501, 415): MORE_EXACT,
    (400, 415): MORE_EXACT,
}
"""Pairs of statuses, Triton's and ours, of refusals that mean the same."""

DIFFERENT: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        (
            *("ok_odd_nesting", "nd_ragged", "nd_transposed_nesting", "ty_bytes_nested", "output_params_not_object"),
            *(f"ty_{sign}INT{bits}_over" for sign in ("U", "") for bits in (8, 16, 32)),
            *(f"ty_INT{bits}_under" for bits in (8, 16, 32)),
            *("ty_fp32_over", "ty_fp32_halfover", "ty_fp32_Inf", "ty_bytes_badutf8"),
            *("bin_in_json_out_bool2", "bin_in_bin_out_bool2", "bin_in_json_out_bytes_badutf8"),
            *("ihcl_plus", "ihcl_spaces", "ihcl_float", "ihcl_trail"),
            *("json_bom", "json_nul_end", "json_badutf8_key", "json_dup_key", "json_deep_data_100"),
            *("enc_gzip_body_deflate_header", "enc_zlib_body_gzip_header", "enc_gzip_crc", "enc_gzip_trailing"),
            *("ty_request_unproduced_output", "class_huge", "ver_01"),
        ),
        STRICT,
    ),
    **dict.fromkeys(
        (
            *("outputs_null", "id_null", "json_huge_num", "enc_gzip_upper", "enc_empty", "pct_ver", "pct_action"),
            *("ty_bool_int", "ty_bool_float", "ty_int_floatint", "ty_int_exp"),
        ),
        LENIENT,
    ),
    "bin_in_json_out_fp16": "that this output is there shows once the model has run, which 400 would deny",
}
"""Cases whose outcomes differ on purpose, and why."""


def body_of(case: dict[str, Any], name: str) -> bytes:
    """Return the bytes of a field."""
    text = {"request": "text", "answer": "answer"}[name]
    data = {"request": "data", "answer": "answer_data"}[name]
    return case[text].encode() if text in case else base64.b64decode(case.get(data, ""))


def read(body: bytes, headers: Mapping[str, str]) -> tuple[Any, bytes]:
    """Return an answer's JSON and the raw data behind it."""
    if headers.get("content-encoding"):
        body = zlib.decompress(body, 47)
    length = headers.get("inference-header-content-length")
    end = len(body) if length is None else int(length)
    return json.loads(body[:end]), body[end:]


def outcome(case: dict[str, Any], status: int, body: bytes, headers: Mapping[str, str]) -> str:
    """Return how our answer differs from Triton's; empty if it does not."""
    if status != case["status"]:
        head = case["method"] == "HEAD" and (case["status"], status) == (405, 200)  # every GET may be asked by HEAD
        return "" if head or (case["status"], status) in OTHER_STATUS else f"{status}: {body[:200]!r}"
    if status != 200:
        return "" if case["method"] == "HEAD" or list(json.loads(body)) == ["error"] else f"{body[:200]!r}"
    if not case["path"].endswith("infer"):
        return ""
    expected = read(body_of(case, "answer"), case.get("answer_headers", {}))
    found = read(
        httpx.Response(200, content=body).content, {k: v for k, v in headers.items() if k != "content-encoding"}
    )
    return "" if repr(found) == repr(expected) else f"{found!r} for {expected!r}"  # NaN is equal by its text


@pytest.fixture(scope="module")
def differences() -> dict[str, str]:
    """Ask everything, and return what differs by the case's name."""
    found: dict[str, str] = {}

    async def ask_all() -> None:
        access = Access(Tokens([]), None, Cors([], has_tokens=False))
        with Ledger() as ledger, ledger.start(LIKE_TRITON, gpus=1) as pool:
            regions = RegionTable(os.memfd_create("oracle"), DEFAULT_LIMITS)
            memory = FrontEndMemory(Counters(), SharedSample(), SequenceTable(DEFAULT_LIMITS.sequences), regions)
            application = Application(GivenPool(pool), access, models=files.read([MODELS]).models, memory=memory)
            transport = httpx.ASGITransport(app=application)
            async with httpx.AsyncClient(transport=transport, base_url="http://oracle") as client:
                for case in CASES:
                    asked = client.build_request(
                        case["method"],
                        case["path"],
                        content=body_of(case, "request"),
                        headers={"accept-encoding": "identity"} | case.get("headers", {}),
                    )
                    answer = await client.send(asked)
                    found[case["name"]] = outcome(case, answer.status_code, answer.content, answer.headers)
            application.close()
            await asyncio.get_running_loop().shutdown_default_executor()

    in_loop(ask_all)
    return found


@pytest.mark.parametrize("name", [case["name"] for case in CASES])
def test_the_outcome_is_triton_s_or_differs_on_purpose(differences: dict[str, str], name: str) -> None:
    """Each difference is in the table, and each one in the table is there."""
    assert bool(differences[name]) == (name in DIFFERENT), differences[name]


def test_the_table_is_of_these_cases() -> None:
    """None of them has gone."""
    assert DIFFERENT.keys() <= {case["name"] for case in CASES}
    assert len(CASES) > 300
