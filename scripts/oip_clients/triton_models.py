"""The models that Triton had when its answers were recorded, as its Python backend and its configurations have them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

TYPES: Final = (
    *("BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64"),
    "STRING",
)
LABELS: Final = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")

LISTED: Final = ("batched_str", "gen_stream", "q_delay", "q_full", "q_noover", "q_prio", "q_reject", "scalar")
"""Models that only lists of all models tell."""

HEAD: Final = """
import sys

sys.path.insert(0, {site!r})

import json
import time

import numpy as np
import triton_python_backend_utils as pb


def of(request, name):
    return pb.get_input_tensor_by_name(request, name).as_numpy()


class TritonPythonModel:
    def execute(self, requests):
        found = []
        for request in requests:
"""

END: Final = """
        return found
"""

ADD_SUB: Final = """
            a, b = of(request, "INPUT0"), of(request, "INPUT1")
            tensors = [pb.Tensor("OUTPUT0", a + b), pb.Tensor("OUTPUT1", a - b)]
            asked = request.requested_output_names()
            found.append(pb.InferenceResponse([each for each in tensors if each.name() in asked]))
"""

SAME: Final = """
            asked = request.requested_output_names()
            tensors = [pb.Tensor("OUT_" + each.name()[3:], each.as_numpy()) for each in request.inputs()]
            found.append(pb.InferenceResponse([each for each in tensors if each.name() in asked]))
"""

STREAM: Final = """
            asked, sender = int(of(request, "N")[0]), request.get_response_sender()
            final = pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL
            count = -asked - 1 if asked < 0 else asked % 1000 % 100
            is_flagged = 100 <= asked < 1000
            for at in range(count):
                if asked >= 1000 and request.is_cancelled():
                    break
                part = pb.InferenceResponse([pb.Tensor("OUT", np.array([at], np.int32))])
                sender.send(part, flags=final if is_flagged and at == count - 1 else 0)
                if asked >= 1000:
                    time.sleep(0.1)
            if asked < 0:
                sender.send(pb.InferenceResponse(error=pb.TritonError("stream broke")), flags=final)
            elif not is_flagged:
                sender.send(flags=final)
        found = None
"""

FAILS: Final = """
            mode = int(of(request, "MODE")[0])
            if mode == 100:
                raise ValueError("raised on purpose")
            if mode == 101:
                return []
            if mode == 102:
                found.append(pb.InferenceResponse([pb.Tensor("WRONG", np.array([1], np.int32))]))
            elif mode == 103:
                found.append(pb.InferenceResponse([pb.Tensor("OUT", np.array([1.5], np.float32))]))
            elif mode == 105:
                found.append(pb.InferenceResponse([]))
            elif mode == 0:
                found.append(pb.InferenceResponse(error=pb.TritonError("error of mode 0")))
            else:
                codes = "INTERNAL NOT_FOUND INVALID_ARG UNAVAILABLE UNSUPPORTED ALREADY_EXISTS CANCELLED"
                code = ["UNKNOWN", *codes.split()][mode - 1]
                error = pb.TritonError("error " + code, getattr(pb.TritonError, code))
                found.append(pb.InferenceResponse(error=error))
"""

SLOW: Final = """
            ms = of(request, "MS")
            end = time.time() + int(ms[0]) / 1000
            while time.time() < end and not request.is_cancelled():
                time.sleep(0.01)
            if request.is_cancelled():
                error = pb.TritonError("seen cancelled", pb.TritonError.CANCELLED)
                found.append(pb.InferenceResponse(error=error))
            else:
                found.append(pb.InferenceResponse([pb.Tensor("OUT", ms)]))
"""

PARAMS: Final = """
            told = {"parameters": json.loads(request.parameters()), "id": request.request_id()}
            told |= {"correlation": request.correlation_id(), "timeout": request.timeout(), "flags": request.flags()}
            text = np.array([json.dumps(told | {"preferred": ""})], dtype=object)
            found.append(pb.InferenceResponse([pb.Tensor("OUT", text)]))
"""

GENERATED: Final = """
            text = np.array([of(request, "text_input")[0]], dtype=object)
            count, score = np.array([3], np.int32), np.array([0.5], np.float32)
            tensors = [pb.Tensor("text_output", text), pb.Tensor("count", count), pb.Tensor("score", score)]
            found.append(pb.InferenceResponse(tensors))
"""


def tensor(kind: str, name: str, datatype: str, dims: str, more: str = "") -> str:
    """Return a tensor's part of a configuration."""
    return f'{kind} [{{ name: "{name}" data_type: TYPE_{datatype} dims: {dims} {more} }}]'


def write(folder: Path, site: Path) -> None:
    """Write the repository of models.

    Args:
        folder: The repository's; it is made.
        site: The packages of the models, which Triton does not find ahead of the interpreter's own.
    """
    head = HEAD.lstrip().format(site=str(site))
    add_sub = [tensor(kind.lower(), f"{kind}{at}", "INT32", "[16]") for kind in ("INPUT", "OUTPUT") for at in range(2)]
    batching = """dynamic_batching { max_queue_delay_microseconds: 300000 preferred_batch_size: [ 8 ] priority_levels: 3
        default_priority_level: 2 default_queue_policy { timeout_action: REJECT default_timeout_microseconds: 0
        allow_timeout_override: true max_queue_size: 16 } }"""
    _model(folder / "add_sub", head, ADD_SUB, 8, add_sub)
    _model(folder / "add_sub_dyn", head, ADD_SUB, 8, [*add_sub, batching])
    _model(folder / "versions", head, ADD_SUB, 8, [*add_sub, "version_policy: { all { }}"], versions=(1, 3))
    names = {each: "BYTES" if each == "STRING" else each for each in TYPES}
    inputs = [tensor("input", f"IN_{names[each]}", each, "[-1]", "optional: true") for each in TYPES]
    _model(folder / "types", head, SAME, 0, [*inputs, *(tensor("output", f"OUT_{names[e]}", e, "[-1]") for e in TYPES)])
    for name, datatype, dims, rows, more in (
        ("nd", "FP32", "[-1,-1]", 0, ""),
        ("classify", "FP32", "[10]", 4, 'label_filename: "labels.txt"'),
        ("classify_nolabel", "INT32", "[4]", 0, ""),
        *((each, "INT32", "[1]", 4, "") for each in LISTED),
    ):
        both = [tensor("input", "IN_X", datatype, dims), tensor("output", "OUT_X", datatype, dims, more)]
        _model(folder / name, head, SAME, rows, both)
    (folder / "classify" / "labels.txt").write_text("\n".join(LABELS) + "\n")
    one = [tensor("output", "OUT", "INT32", "[1]")]
    decoupled = "model_transaction_policy { decoupled: true }"
    _model(folder / "stream", head, STREAM, 0, [tensor("input", "N", "INT32", "[1]"), *one, decoupled])
    _model(folder / "fails", head, FAILS, 0, [tensor("input", "MODE", "INT32", "[1]"), *one])
    _model(folder / "slow", head, SLOW, 0, [tensor("input", "MS", "INT32", "[1]"), *one])
    told = [tensor("input", "X", "INT32", "[-1]"), tensor("output", "OUT", "STRING", "[1]")]
    _model(folder / "params", head, PARAMS, 0, told)
    texts = [tensor("input", "text_input", "STRING", "[1]")]
    texts += [tensor("input", "max_tokens", "INT32", "[1]", "optional: true")]
    outputs = (("text_output", "STRING"), ("count", "INT32"), ("score", "FP32"))
    _model(
        folder / "gen", head, GENERATED, 0, [*texts, *(tensor("output", name, each, "[1]") for name, each in outputs)]
    )


def _model(
    folder: Path, head: str, code: str, rows: int, parts: Iterable[str], versions: tuple[int, ...] = (1,)
) -> None:
    for version in versions:
        (folder / str(version)).mkdir(parents=True)
        (folder / str(version) / "model.py").write_text(head + code.lstrip("\n") + END.lstrip("\n"))
    begin = ('backend: "python"', f"max_batch_size: {rows}", "instance_group [{ kind: KIND_CPU count: 1 }]")
    (folder / "config.pbtxt").write_text("\n".join([*begin, *parts]) + "\n")
