"""An actor with a torch module whose parameters are resident."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from atomr_mp_workers import Actor, Context, method
from tests.actors.probe import note


def make_model() -> Any:
    """Return a module with parameters of several types, two of them the same, one without elements, and a buffer."""
    model = torch.nn.Module()
    model.first = torch.nn.Linear(8, 8)
    model.second = torch.nn.Linear(8, 8, dtype=torch.bfloat16)
    model.tied = torch.nn.Linear(8, 8, bias=False)
    model.tied.weight = model.first.weight
    model.scale = torch.nn.Parameter(torch.tensor(2.0, dtype=torch.float64))
    model.none = torch.nn.Parameter(torch.zeros(0, 3))
    model.register_buffer("calls", torch.zeros(()))
    return model


def compute(model: Any, x: Any) -> Any:
    """Use it, and count in its buffer."""
    model.calls += 1
    return model.tied(model.first(x)) * model.scale + model.second(x.to(torch.bfloat16)).float()


def content() -> dict[str, Any]:
    """Return the parameters' content, the same in every process."""
    torch.manual_seed(7)
    found: dict[str, Any] = make_model().state_dict()
    return found


class TorchHoused(Actor):
    """Makes the module without content, and has the filling process load it."""

    def setup(self, context: Context) -> None:
        """Make the module."""

        def load() -> Mapping[str, Any]:
            note(f"{context.generation}", "loads")
            return content()

        with torch.device("meta"):
            self._model: Any = make_model()
        self._model.calls = torch.zeros(())
        context.resident_module(self._model, "model", version="1", load=load, checksum=True)
        if context.backend == "cuda":
            self._model.cuda()  # the buffer; what is there already stays

    @method
    def forward(self) -> list[float]:
        """Return the module's result for ones, and how often it was called."""
        x = torch.ones(8, device=self._model.first.weight.device)
        with torch.inference_mode():
            return [*compute(self._model, x).cpu().tolist(), float(self._model.calls)]

    @method
    def parameters(self) -> dict[str, Any]:
        """Return facts of the parameters."""
        model = self._model
        return {
            "tied": model.tied.weight is model.first.weight,
            "types": sorted({str(parameter.dtype) for parameter in model.parameters()}),
            "gradients": any(parameter.requires_grad for parameter in model.parameters()),
            "places": sorted(parameter.data_ptr() % 256 for parameter in model.parameters() if parameter.numel()),
        }

    @method
    def train(self) -> None:
        """Write a parameter, although that is forbidden, which torch does not know."""
        self._model.scale.fill_(1.0)
