"""A torch module's parameters in resident memory. Where torch is not installed, there is nothing to test."""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace
from typing import Any, Final

import pytest

from atomr_mp import errors
from tests.support import ACTORS, Ledger, wait_generation

torch = pytest.importorskip("torch")

HOUSED: Final = f"{ACTORS}/torch_housed.py:TorchHoused"


@pytest.fixture(scope="module", autouse=True)
def torch_is_here() -> None:
    """Let torch have its threads before a ledger counts any."""
    with torch.inference_mode():
        torch.nn.Linear(8, 8, dtype=torch.bfloat16)(torch.ones(8, dtype=torch.bfloat16))
        torch.nn.Linear(8, 8)(torch.ones(8))


class HereAndNow:
    """A context whose resident memory is this process's own."""

    def resident(self, _name: str, layout: Any, *, version: str, fill: Any, checksum: bool) -> Any:
        """Fill arrays at once."""
        import numpy as np

        from atomr_mp.protocol.dtypes import to_numpy

        del version, checksum
        arrays = {name: np.full(shape, 0, to_numpy(dtype)) for name, (shape, dtype) in layout.items()}
        fill(arrays)
        for array in arrays.values():
            array.setflags(write=False)
        return arrays


def move(module: Any, load: Any = None) -> None:
    """Move a module's parameters."""
    from atomr_mp_workers.memory.resident.torch_modules import move as move_it

    context: Any = HereAndNow()
    move_it(context, module, "model", "1", load, checksum=False)


def test_a_module_computes_the_same_in_every_process(ledger: Ledger) -> None:
    """Its parameters were loaded once; its buffers are each process's own."""
    from tests.actors import torch_housed

    model = torch_housed.make_model()
    model.load_state_dict(torch_housed.content())
    with torch.inference_mode():
        expected = torch_housed.compute(model, torch.ones(8)).tolist()
    with ledger.start(HOUSED, max_restarts=1000, backoff_initial_s=0.05) as pool:
        for generation in (1, 2):
            wait_generation(pool, generation)
            for calls in (1, 2):
                *found, counted = pool.call("TorchHoused.forward").result()
                assert found == pytest.approx(expected, rel=0.02, abs=0.02)
                assert counted == calls
            assert pool.call("TorchHoused.parameters").result() == {
                "tied": True,
                "types": ["torch.bfloat16", "torch.float32", "torch.float64"],
                "gradients": False,
                "places": [0] * 5,
            }
            os.kill(pool.devices[0].pid, signal.SIGKILL)
        wait_generation(pool, 3)
        lost = pool.call("TorchHoused.train").exception()
        assert isinstance(lost, errors.WorkerLost | errors.ContextPoisoned)
        wait_generation(pool, 4)
        *found, _ = pool.call("TorchHoused.forward").result()
        assert found == pytest.approx(expected, rel=0.02, abs=0.02)
    assert ledger.runs("loads") == ["1"]


@pytest.mark.parametrize(
    "dtype", ["float16", "bfloat16", "float64", "complex64", "int64", "uint8", "bool", "float8_e4m3fn", "float8_e5m2"]
)
def test_every_element_type_that_both_have_is_moved(dtype: str) -> None:
    """Bit by bit."""
    bits = torch.arange(16, dtype=torch.uint8) % 2
    values = bits.view(getattr(torch, dtype))
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(values.clone(), requires_grad=False)
    move(module)
    assert module.weight.dtype is values.dtype
    assert torch.equal(module.weight.view(torch.uint8), bits)


def test_what_has_no_content_is_refused() -> None:
    """A parameter that `load` leaves out, one of another shape, one that has none, and a module without any."""
    with torch.device("meta"):
        empty = torch.nn.Linear(2, 2)
    with pytest.raises(errors.InvalidRequest, match="no content for weight, bias"):
        move(empty)
    with pytest.raises(errors.InvalidRequest, match="no content for bias"):
        move(empty, lambda: {"weight": torch.zeros(2, 2)})
    with pytest.raises(errors.InvalidRequest, match=r"shape \(2, 2\), its content \(3,\)"):
        move(empty, lambda: {"weight": torch.zeros(3), "bias": torch.zeros(2)})
    with pytest.raises(errors.InvalidRequest, match="has no parameters"):
        move(torch.nn.ReLU())
    odd = SimpleNamespace(dtype="torch.float33", shape=(1,))
    with pytest.raises(errors.InvalidRequest, match="element type float33"):
        move(SimpleNamespace(named_parameters=lambda: [("odd", odd)]))
    assert empty.weight.is_meta
