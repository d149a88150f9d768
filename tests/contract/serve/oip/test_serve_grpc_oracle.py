"""The same requests over gRPC to a real Triton server and to ours: codes and answers, and where they differ on purpose.

`tests/cases/triton_grpc_answers.json` has what tritonserver 2.51 (in nvidia-pytriton 0.7.0, Python backend) answered.
Texts of errors are our own.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any, Final

import pytest

from tests import triton_cases
from tests.inferring import bearer, channel_of
from tests.serving import Server
from tests.support import ACTORS, Ledger
from tests.triton_cases import Outcome

LIKE_TRITON: Final = f"{ACTORS}/like_triton.py:LikeTriton"

CASES: Final = {case["name"]: case for case in triton_cases.GRPC_CASES}

VERSIONED: Final = ("model_ready", "model_meta", "model_config", "model_stats", "infer_ver")
"""Begin the names of cases of a version."""

MORE_EXACT: Final = "our code says more, or less than INTERNAL of a client's mistake"
STRICT: Final = "Triton reads it in another way than it was written, or not at all"
LENIENT: Final = "it can have one meaning only"
ONE_VERSION: Final = "every model has the version 1"
NO_SETTINGS: Final = (
    "models are the pool's methods; CUDA's shared memory, and settings of traces and logs, are not offered"
)
OF_METHOD: Final = (
    "an actor's exceptions have no codes of gRPC; its results are in its order, and have to fit the model"
)
OF_STREAM: Final = "a method does not say of a part that it is the last one"
OWN_PARAMETERS: Final = (
    "sequences are not offered, so their parameters are like any other; those of HTTP are not passed on"
)

DIFFERENT: Final[Mapping[str, str]] = {
    **{f"model_stats_{which}": MORE_EXACT for which in ("v9", "v0", "unknown", "unknown_v1", "versions_2")},
    **{f"{call}_{which}": STRICT for call in VERSIONED for which in ("v01", "v1x", "v_space", "v_float")},
    **{f"{call}_versions": ONE_VERSION for call in VERSIONED if call != "model_ready"},
    **{f"{call}_versions_3": ONE_VERSION for call in VERSIONED},
    "model_stats_empty": "methods are models, too",
    **dict.fromkeys(
        (
            *("repository_index", "repository_index_ready", "repository_load", "repository_unload"),
            *("cuda_register", "trace_get", "log_get"),
        ),
        NO_SETTINGS,
    ),
    **dict.fromkeys(
        (
            "raw_three",
            "param_timeout_2",
            "types_u8_over",
            "types_i8_over",
            "types_bool_raw2",
            "types_unproduced_output",
        ),
        STRICT,
    ),
    **dict.fromkeys(("param_uint", "types_zero_noraw", "class_zero"), LENIENT),
    **dict.fromkeys(
        ("shape_zero", "shm_register_bad", "garbage_bytes", "garbage_truncated", "badutf8_name"), MORE_EXACT
    ),
    **dict.fromkeys(("param_timeout_0", "param_timeout_3"), "a timeout is a deadline of the whole call"),
    **{f"param_sequence_id_{at}": OWN_PARAMETERS for at in range(4)},
    **{f"param_sequence_start_{at}": OWN_PARAMETERS for at in range(3)},
    "param_binary_data_output_0": OWN_PARAMETERS,
    **{f"fails_{mode}": OF_METHOD for mode in (1, 3, 5, 6, 7, 8, 102, 103, 105)},
    **dict.fromkeys(("types_none", "types_two_inputs", "s_grpc_error_mode_fails3"), OF_METHOD),
    **dict.fromkeys(("s_flag_on_last", "s_flag_on_last_final"), OF_STREAM),
    **dict.fromkeys(("health_check_unknown", "health_watch"), "health is as gRPC defines it"),
    **dict.fromkeys(("reflection_v1", "reflection_v1alpha"), "reflection is offered"),
}
"""Cases whose outcomes differ on purpose, and why."""

OUR_OWN: Final = frozenset(
    {
        *("platform", "backend", "default_model_filename", "instance_group", "optimization", "label_filename"),
        *("parameters", "preferred_batch_size", "max_queue_delay_microseconds", "max_queue_size"),
    }
)
"""Fields of what describes a model that tell how it is run, and by which files."""

COUNTS: Final = ("inference_count", "execution_count")


def comparable(case: dict[str, Any], outcome: Outcome) -> tuple[str, list[Any]]:
    """Return what has to be equal of an outcome."""
    answers = outcome.answers
    match case["call"].rpartition("/")[2]:
        case "ServerMetadata":
            answers = [sorted(each) for each in answers]
        case "ModelMetadata" | "ModelConfig":
            answers = [_described(each) for each in answers]
        case "ModelStatistics":
            answers = [_counted(each) for each in answers]
        case "ModelStreamInfer":
            # Calls of one stream are answered side by side.
            answers = sorted(map(_part, answers), key=lambda part: str(part.get("id")))
            if outcome.code in {"CANCELLED", "DEADLINE_EXCEEDED"}:
                answers = answers[:1]  # how many there were before is a matter of time
        case "ModelInfer" if case.get("request", {}).get("model_name") == "params":
            answers = [_passed_on(each) for each in answers]
    return outcome.code, answers


def _described(told: Any) -> Any:
    """Return what describes a model, without what is our own or empty."""
    if isinstance(told, list):
        return [_described(each) for each in told]
    if not isinstance(told, dict):
        return told
    fields = {name: _described(each) for name, each in told.items() if name not in OUR_OWN}
    return {name: each for name, each in fields.items() if each != {}}


def _counted(told: dict[str, Any]) -> Any:
    """Return what statistics have counted, without what they have measured."""
    return [
        (
            *(each[name] for name in ("name", "version")),
            *(int(each.get(name, 0)) for name in COUNTS),
            *(int(each["inference_stats"][name].get("count", 0)) for name in ("success", "fail")),
        )
        for each in told["model_stats"]
    ]


def _part(told: dict[str, Any]) -> dict[str, Any]:
    """Return a part of a stream; of an error, only whose it is."""
    found: dict[str, Any] = told.get("infer_response", {})
    return {"error": True, "id": found.get("id")} if "error_message" in told else found


def _passed_on(told: dict[str, Any]) -> Any:
    """Return the id and the parameters that a method has got."""
    got = json.loads(base64.b64decode(told["raw_output_contents"][0])[4:])
    return got["id"], got["parameters"]


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Outcome]:
    """Send everything in its order, as the counts of statistics follow from it, and return what came by case."""
    with (
        Ledger() as ledger,
        Server(
            *(ledger, "--grpc-port", "0", "--models", triton_cases.MODELS, "--allow-client-shm"), actor=LIKE_TRITON
        ) as server,
        channel_of(server) as channel,
    ):
        shown = list(bearer(server).items())
        return {name: triton_cases.ask(channel, case, shown) for name, case in CASES.items()}


@pytest.mark.parametrize("name", CASES)
def test_the_outcome_is_triton_s_or_differs_on_purpose(outcomes: dict[str, Outcome], name: str) -> None:
    """Each difference is in the table, and each one in the table is there."""
    expected, found = (comparable(CASES[name], each) for each in (Outcome.recorded(CASES[name]), outcomes[name]))
    if name in DIFFERENT:
        assert found != expected, f"it does not differ any more: {DIFFERENT[name]}"
    else:
        assert found == expected, outcomes[name].message


def test_every_refusal_says_why(outcomes: dict[str, Outcome]) -> None:
    """In a text of ours, where Triton has one; and an error of a stream is the end of its request."""
    for name, found in outcomes.items():
        if Outcome.recorded(CASES[name]).message and found.code != "OK":
            assert found.message, name
        for part in found.answers:
            if isinstance(part, dict) and "error_message" in part:
                assert part["infer_response"]["parameters"] == {"triton_final_response": {"bool_param": True}}, name


def test_the_table_is_of_these_cases() -> None:
    """None of them has gone."""
    assert CASES.keys() >= DIFFERENT.keys()
    assert len(CASES) > 290
