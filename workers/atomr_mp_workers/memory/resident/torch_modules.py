"""The parameters of a torch module in resident memory. Imported only with such a module, so torch is there."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch

from atomr_mp import errors
from atomr_mp.protocol import dtypes

Load = Callable[[], Mapping[str, Any]]


class ResidentArrays(Protocol):
    """Makes, or finds, an actor's resident arrays."""

    def resident(
        self,
        name: str,
        layout: Mapping[str, tuple[Sequence[int], Any]],
        *,
        version: str,
        fill: Callable[[Mapping[str, Any]], object],
        checksum: bool = False,
    ) -> Mapping[str, Any]:
        """Return the arrays of a name and version, see `Context.resident`."""


def move(context: ResidentArrays, module: Any, name: str, version: str, load: Load | None, *, checksum: bool) -> None:
    """Replace a module's parameters by resident ones, see `Context.resident_module`."""
    found = dict(module.named_parameters())
    layout = {each: (tuple(parameter.shape), _dtype(each, parameter)) for each, parameter in found.items()}
    if not layout:
        raise errors.InvalidRequest(f"resident memory {name!r}: the module has no parameters")

    def fill(arrays: Mapping[str, Any]) -> None:
        sources = found if load is None else load()
        missing = sorted(arrays.keys() - sources.keys())
        empty = [each for each in arrays if each not in missing and sources[each].is_meta]
        if missing or empty:
            raise errors.InvalidRequest(
                f"resident memory {name!r}: there is no content for {', '.join(missing or empty)}; `load` returns it"
            )
        for each, array in arrays.items():
            if sources[each].shape != found[each].shape:
                raise errors.InvalidRequest(
                    f"resident memory {name!r}: {each} has the shape {tuple(found[each].shape)}, its content "
                    f"{tuple(sources[each].shape)}"
                )
            _tensor(array, found[each]).copy_(sources[each].detach())

    arrays = context.resident(name, layout, version=version, fill=fill, checksum=checksum)
    new = {
        parameter: torch.nn.Parameter(_tensor(arrays[each], parameter), requires_grad=False)
        for each, parameter in found.items()
    }
    for part in module.modules():
        # Parameters that shared memory before still share it afterwards.
        for each, parameter in list(part.named_parameters(recurse=False, remove_duplicate=False)):
            setattr(part, each, new[parameter])


def _dtype(name: str, parameter: Any) -> str:
    found = str(parameter.dtype).removeprefix("torch.")
    if found not in dtypes.ITEM_BYTES:
        raise errors.InvalidRequest(
            f"the parameter {name} has the element type {found}; resident memory has {', '.join(dtypes.ITEM_BYTES)}"
        )
    return found


def _tensor(array: Any, like: Any) -> Any:
    """Return an array as a tensor over the same memory, through its bytes: torch and NumPy do not share all types."""
    flat = array.reshape(-1).view("uint8")
    if hasattr(flat, "__cuda_array_interface__"):
        tensor = torch.from_dlpack(flat)
    else:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # it is read-only on purpose
            tensor = torch.from_numpy(flat)
    return tensor.view(like.dtype).reshape(like.shape)
