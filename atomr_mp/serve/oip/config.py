"""A model's configuration as Triton tells it. Pure.

It tells what holds, by the description and the method. What else a config.pbtxt says is not told: nothing follows it.
"""

from __future__ import annotations

from typing import Any, Final

from atomr_mp.serve.oip.models import PLATFORM, Model
from atomr_mp.serve.oip.settings import FALSE_TRUE, MICROSECONDS, ControlSetting
from atomr_mp.serve.oip.signature import TensorInfo

KINDS: Final = {
    "start": "CONTROL_SEQUENCE_START",
    "end": "CONTROL_SEQUENCE_END",
    "ready": "CONTROL_SEQUENCE_READY",
    "id": "CONTROL_SEQUENCE_CORRID",
}
"""Triton's kinds of controls by ours."""


def config_of(model: Model) -> dict[str, Any]:
    """Return a model's configuration, in the names of Triton's ModelConfig."""
    setting = model.setting
    texts = setting.parameters | {"method": model.method}
    found: dict[str, Any] = {
        "name": model.name,
        "platform": "",
        "backend": PLATFORM,
        "version_policy": {"latest": {"num_versions": 1}},
        "max_batch_size": setting.max_batch_size,
        "input": [_tensor(each) | _of_input(each) for each in model.inputs.values()],
        "output": [_tensor(each) | _of_output(model, each) for each in (model.outputs or {}).values()],
        "instance_group": [],
        "default_model_filename": "",
        "parameters": {name: {"string_value": text} for name, text in texts.items()},
        "model_transaction_policy": {"decoupled": model.info.streams},
    }
    if setting.has_sequences:
        found["sequence_batching"] = {
            "max_sequence_idle_microseconds": round(setting.idle_s * MICROSECONDS),
            "direct": {"max_queue_delay_microseconds": 0, "minimum_slot_utilization": 0.0},
            "control_input": [_control(name, each) for name, each in setting.sequence_controls.items()],
            "state": [],
        }
        return found  # Triton's configuration has one kind of scheduling
    joins_rows = model.info.batches_rows and setting.max_batch_size > 0
    if joins_rows or setting.priority_levels or setting.deadline_s is not None:
        found["dynamic_batching"] = {
            "preferred_batch_size": [],
            "max_queue_delay_microseconds": round(model.info.batch_wait_s * MICROSECONDS) if joins_rows else 0,
            "preserve_ordering": False,
            "priority_levels": setting.priority_levels,
            "default_priority_level": setting.default_priority_level,
            "default_queue_policy": {
                "timeout_action": "REJECT",
                "default_timeout_microseconds": round((setting.deadline_s or 0) * MICROSECONDS),
                "allow_timeout_override": True,
                "max_queue_size": 0,
            },
            "priority_queue_policy": {},
        }
    return found


def _control(name: str, control: ControlSetting) -> dict[str, Any]:
    if control.kind == "id":
        datatype = "STRING" if control.datatype == "BYTES" else control.datatype
        return {"name": name, "control": [{"kind": KINDS["id"], "data_type": f"TYPE_{datatype}"}]}
    field, of = FALSE_TRUE[control.datatype]
    return {"name": name, "control": [{"kind": KINDS[control.kind], field: list(map(of, control.values))}]}


def _tensor(info: TensorInfo) -> dict[str, Any]:
    dims = info.told_shape
    datatype = "STRING" if info.datatype == "BYTES" else info.datatype
    return {"name": info.name, "data_type": f"TYPE_{datatype}", "dims": dims[1:] if info.has_rows else dims}


def _of_input(info: TensorInfo) -> dict[str, Any]:
    return {
        "format": "FORMAT_NONE",
        "is_shape_tensor": False,
        "allow_ragged_batch": False,
        "optional": info.is_optional,
    }


def _of_output(model: Model, info: TensorInfo) -> dict[str, Any]:
    said = model.setting.outputs.get(info.name)
    return {"label_filename": "" if said is None else said.label_filename, "is_shape_tensor": False}
