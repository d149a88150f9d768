"""A model's configuration as Triton tells it. Pure."""

from __future__ import annotations

from typing import Any

from atomr_mp.serve.oip.models import PLATFORM, Model
from atomr_mp.serve.oip.signature import TensorInfo


def config_of(model: Model) -> dict[str, Any]:
    """Return a model's configuration, in the names of Triton's ModelConfig."""
    has_rows = model.setting.max_batch_size > 0
    return {
        "name": model.name,
        "platform": "",
        "backend": PLATFORM,
        "version_policy": {"latest": {"num_versions": 1}},
        "max_batch_size": model.setting.max_batch_size,
        "input": [_tensor(each, has_rows=has_rows) | _of_input(each) for each in model.inputs.values()],
        "output": [
            _tensor(each, has_rows=has_rows) | {"label_filename": ""} for each in (model.outputs or {}).values()
        ],
        "instance_group": [],
        "default_model_filename": "",
        "parameters": {"method": {"string_value": model.method}},
        "model_transaction_policy": {"decoupled": model.info.streams},
    }


def _tensor(info: TensorInfo, *, has_rows: bool) -> dict[str, Any]:
    dims = info.told_shape
    datatype = "STRING" if info.datatype == "BYTES" else info.datatype
    return {"name": info.name, "data_type": f"TYPE_{datatype}", "dims": dims[1:] if has_rows else dims}


def _of_input(info: TensorInfo) -> dict[str, Any]:
    return {
        "format": "FORMAT_NONE",
        "is_shape_tensor": False,
        "allow_ragged_batch": False,
        "optional": info.is_optional,
    }
