"""Values of other libraries (pydantic's models, torch's tensors), and what crosses in their place. Pure.

None of these libraries is imported here: whoever holds a value of one has imported it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from atomr_mp import errors
from atomr_mp.protocol import dtypes

if TYPE_CHECKING:
    import numpy as np

CPU: Final = 1
"""kDLCPU, the kind of DLPack's device that is the processor's memory."""

_INSTEAD: Final = {
    ("pandas", "DataFrame"): "records (`frame.to_dict('records')`), or a map of arrays by column",
    ("pandas", "Series"): "an array (`series.to_numpy()`)",
    ("pandas", "Index"): "an array (`index.to_numpy()`)",
    ("polars", "DataFrame"): "records (`frame.to_dicts()`), or a map of arrays by column",
    ("polars", "Series"): "an array (`series.to_numpy()`)",
    ("PIL", "Image"): "the bytes of the encoded image (of `image.save`), or an array (`numpy.asarray(image)`)",
    ("numpy", "generic"): "a plain number or text, as NumPy's scalars arrive",
    ("torch", "Tensor"): "a torch.Tensor",
    ("pathlib", "PurePath"): "a str, the path's text",
    ("concurrent", "Future"): "its `result()`",
    ("_asyncio", "Future"): "its result, once it was awaited",
    ("builtins", "coroutine"): "its result, once it was awaited",
    ("builtins", "async_generator"): "a list of what it yields",
    ("builtins", "generator"): "a list (`list(x)`)",
    ("builtins", "range"): "a list (`list(x)`)",
    ("builtins", "map"): "a list (`list(x)`)",
    ("builtins", "zip"): "a list (`list(x)`)",
    ("builtins", "filter"): "a list (`list(x)`)",
    ("builtins", "dict_keys"): "a list (`list(x)`)",
    ("builtins", "dict_values"): "a list (`list(x)`)",
    ("builtins", "dict_items"): "a list (`list(x)`)",
    ("collections", "deque"): "a list (`list(x)`)",
}
"""What is sent in place of instances, by the library and the class, which may be a base."""


def instead(kind: type) -> str:
    """Return words that name a value to send instead of an instance of a class."""
    for base in kind.__mro__:
        found = _INSTEAD.get((base.__module__.partition(".")[0], base.__name__))
        if found is not None:
            return found
    return "None, bool, int, float, str, bytes, lists, maps, and NumPy arrays"


def plain(value: Any) -> object:
    """Return a model as plain values and a tensor as an array; any other value itself."""
    if is_model(value):
        return dump(value)
    return to_array(value) if is_tensor(value) else value


def is_model(value: object) -> bool:
    """Return whether a value is an instance of a pydantic model."""
    base = getattr(sys.modules.get("pydantic"), "BaseModel", None)
    return base is not None and isinstance(value, base)


def dump(model: Any) -> object:
    """Return a pydantic model as its own serialisers write it, for Python.

    Fields have their aliases, by which the model is validated: what a method returns can be given back to it.
    """
    return model.model_dump(mode="python", by_alias=True)


def tensor_class() -> type | None:
    """Return `torch.Tensor`, None where torch has not been imported."""
    found = getattr(sys.modules.get("torch"), "Tensor", None)
    return found if isinstance(found, type) else None


def is_tensor(value: object) -> bool:
    """Return whether a value is a tensor of torch."""
    kind = tensor_class()
    return kind is not None and isinstance(value, kind)


def on_host(tensor: Any) -> bool:
    """Return whether a tensor lies in the processor's memory."""
    return bool(tensor.__dlpack_device__()[0] == CPU)


def to_array(tensor: Any) -> np.ndarray[Any, Any]:
    """Return a tensor as an array: over the same memory if that is the processor's, else a copy.

    Raises:
        InvalidRequest: torch has no array for it: it is sparse, for one.
    """
    import numpy as np

    try:
        plain = tensor.detach()  # a tensor with a gradient is not handed on
        plain = plain if on_host(plain) else plain.cpu()
        name = str(tensor.dtype).rpartition(".")[2]
        if name in dtypes.ITEM_BYTES and (element := dtypes.to_numpy(name)).kind == "V":  # DLPack lacks it in NumPy
            of_bytes = _same_size(element.itemsize)
            return np.from_dlpack(plain.view(getattr(sys.modules["torch"], of_bytes))).view(element)
        return np.from_dlpack(plain)
    except errors.AtomrError:
        raise
    except Exception as error:
        raise errors.InvalidRequest(f"a tensor cannot be sent: {error}") from error


def to_tensor(array: Any, *, writable: bool = False) -> Any:
    """Return an array, NumPy's or CuPy's, as a tensor over the same memory; the tensor keeps it.

    torch knows no read-only memory: a tensor over a read-only array can be written, and must not be.

    Args:
        array: The array.
        writable: Whether the tensor is there to be written, so that it must not be a copy.

    Raises:
        InvalidRequest: torch has no such tensor.
    """
    torch: Any = sys.modules["torch"]
    try:
        if any(step < 0 for step in array.strides):
            if writable:
                raise errors.InvalidRequest("a tensor cannot lie backwards in memory, as this array does")
            array = array.copy()
        if not hasattr(array, "__cuda_array_interface__") and not array.flags.writeable:
            array = _unlocked(array)
        if array.dtype.kind != "V":
            return torch.from_dlpack(array)
        element = getattr(torch, dtypes.name_of(array.dtype))
        return torch.from_dlpack(array.view(_same_size(array.dtype.itemsize))).view(element)
    except errors.AtomrError:
        raise
    except Exception as error:
        raise errors.InvalidRequest(f"an array of {array.dtype} cannot be a tensor: {error}") from error


def _same_size(item_bytes: int) -> str:
    """Return an element type of the same size that both NumPy and torch hand on."""
    return "int16" if item_bytes == 2 else "uint8"


def _unlocked(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return an array over the same memory that is not marked as read-only, which DLPack could not say to all."""
    import numpy as np

    return np.asarray(_Unlocked(array))


class _Unlocked:
    """The memory of an array, for NumPy; it keeps the array."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._array: Final = array
        interface = array.__array_interface__
        self.__array_interface__ = interface | {"data": (interface["data"][0], False)}
