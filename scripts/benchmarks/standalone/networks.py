"""What requests of neural networks take on a GPU, twenty in flight, beside torch in this process, in turns.

    python -m scripts.benchmarks.standalone.networks > networks.json

`us` is the time of one of twenty that are put at once, until the last is done, by the wall clock: the median of the
rounds. torch has the same sizes, types and strides, one thread and no tuning (`cudnn.benchmark`), and true float32.
`plan_ms` is the first request's time, which makes the plan. `engine` has served last, as `status` tells.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

import atomr_mp

sys.path.append(str(Path(__file__).resolve().parents[2]))

from benchmarks import machine

FLIGHT: Final = 20
LAST: Final = (0, 2, 3, 1)
"""An image's dimensions with the channels last."""


class Layer(NamedTuple):
    """A request, and the same by torch."""

    shapes: tuple[tuple[int, ...], ...]
    dtype: str
    ours: Callable[..., Any]
    """Sends the request, given the library, its output and arrays."""
    torch: Callable[..., Any]
    """Does it, given torch and arrays."""
    images: int = 0
    """How many of the arrays, the first of them, are images with the channels last."""


def _conv(channels: int, size: int, window: int) -> Layer:
    shapes = (64, channels, size, size), (channels, channels, window, window)
    padding = window // 2
    return Layer(
        shapes,
        "bfloat16",
        lambda dnn, out, x, w: dnn.conv2d(x, w, out=out, padding=padding),
        lambda torch, x, w: torch.nn.functional.conv2d(x, w, padding=padding),
        images=2,
    )


def _attention(dtype: str, heads: int, length: int) -> Layer:
    return Layer(
        ((8, heads, length, 128),) * 3,
        dtype,
        lambda dnn, out, q, k, v: dnn.scaled_dot_product_attention(q, k, v, out=out, is_causal=True),
        lambda torch, q, k, v: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True),
    )


LAYERS: Final = {
    "conv 3x3, 64 of 256 x 14 x 14": _conv(256, 14, 3),
    "conv 3x3, 64 of 64 x 56 x 56": _conv(64, 56, 3),
    "conv 1x1, 64 of 512 x 28 x 28": _conv(512, 28, 1),
    "attention 8 x 32 x 4096 x 128, causal": _attention("bfloat16", 32, 4096),
    "layer norm 8192 x 4096": Layer(
        ((8192, 4096), (4096,), (4096,)),
        "bfloat16",
        lambda dnn, out, x, w, b: dnn.layer_norm(x, w, b, out=out, normalized_shape=(4096,)),
        lambda torch, x, w, b: torch.nn.functional.layer_norm(x, (4096,), w, b),
    ),
    "softmax 8192 x 8192, float32": Layer(
        ((8192, 8192),),
        "float32",
        lambda dnn, out, x: dnn.softmax(x, out=out),
        lambda torch, x: torch.softmax(x, -1),
    ),
    "conv 3x3, 32 of 64 x 56 x 56, float32": Layer(
        ((32, 64, 56, 56), (64, 64, 3, 3)),
        "float32",
        lambda dnn, out, x, w: dnn.conv2d(x, w, out=out, padding=1),
        lambda torch, x, w: torch.nn.functional.conv2d(x, w, padding=1),
    ),
}


def measured(pool: atomr_mp.Pool, torch: Any, layer: Layer, rounds: int) -> dict[str, Any]:
    """Return the times of a layer."""
    device, random = pool.device(), np.random.default_rng(1)
    ours, theirs = [], []
    for at, shape in enumerate(layer.shapes):
        values = random.normal(size=shape).astype("float32") * 0.1
        tensor = torch.from_numpy(values).cuda().to(getattr(torch, layer.dtype))
        last = at < layer.images
        theirs.append(tensor.contiguous(memory_format=torch.channels_last) if last else tensor)
        wide = device.put(np.ascontiguousarray(values.transpose(LAST)) if last else values)
        ref = wide.astype(layer.dtype)
        ours.append(ref.transpose(0, 3, 1, 2) if last else ref)
    made = layer.torch(torch, *theirs)
    out = device.zeros(tuple(made.permute(LAST).shape if layer.images else made.shape), layer.dtype)
    out = out.transpose(0, 3, 1, 2) if layer.images else out
    began = time.perf_counter()
    layer.ours(device.dnn, out, *ours).result(120.0)
    plan_ms = (time.perf_counter() - began) * 1e3
    expected = made.float().cpu().numpy()
    error = float(np.abs(out.astype("float32").numpy() - expected).max() / np.abs(expected).max())
    times: dict[str, list[float]] = {"ours": [], "torch": []}
    for _ in range(rounds):
        began = time.perf_counter()
        replies = [layer.ours(device.dnn, out, *ours) for _ in range(FLIGHT)]
        replies[-1].result(120.0)
        times["ours"].append((time.perf_counter() - began) / FLIGHT * 1e6)
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(FLIGHT):
            layer.torch(torch, *theirs)
        torch.cuda.synchronize()
        times["torch"].append((time.perf_counter() - began) / FLIGHT * 1e6)
    medians = {name: round(statistics.median(each), 1) for name, each in times.items()}
    plans = pool.status().devices[0].plans
    engine = next((each.engine for each in plans if each.library == "dnn"), "") if plans else ""
    return {
        "us": medians,
        "share": round(medians["torch"] / medians["ours"], 3),
        "plan_ms": round(plan_ms, 1),
        "greatest_difference": round(error, 6),
        "engine": engine,
    }


def main() -> int:
    """Measure, and print."""
    import torch

    parser = argparse.ArgumentParser(description="Measure requests of neural networks beside torch.")
    parser.add_argument("--rounds", type=int, default=7)
    asked = parser.parse_args()
    torch.backends.cudnn.allow_tf32 = False
    found: dict[str, Any] = {"machine": machine.facts(), "torch": torch.__version__, "layers": {}}
    with (
        tempfile.TemporaryDirectory(prefix="atomr-mp-networks-", dir="/tmp") as folder,
        atomr_mp.start(gpus=1, backend="cuda", run_dir=Path(folder) / "run") as pool,
    ):
        for name, layer in LAYERS.items():
            try:
                found["layers"][name] = measured(pool, torch, layer, asked.rounds)
            except Exception as error:  # noqa: BLE001 - the other layers are worth having
                found["layers"][name] = f"{type(error).__name__}: {error}"
            sys.stderr.write(f"{name}: {found['layers'][name]}\n")
    json.dump(found, sys.stdout, indent=1)
    print()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
