"""Attributes of NumPy's and CuPy's arrays that refs lack, each with what does the same. Pure."""

from __future__ import annotations

from typing import Final

_ELSEWHERE: Final = "no library has a request for it: compute it in an actor's method, or on a copy, `ref.numpy()`"
_COMPARED: Final = "as truth values it is a request of no library: `bool(ref.numpy().{name}())` reads all elements"

INSTEAD: Final = {
    "get": "`ref.numpy()` returns a copy",
    "set": "`ref[...] = array` writes all elements",
    "tolist": "`ref.numpy().tolist()`",
    "tobytes": "`ref.numpy().tobytes()`",
    "flatten": "`ref.ravel().copy()`",
    "flat": "`ref.ravel()` has the elements in one dimension",
    "swapaxes": "`ref.transpose(axes)` takes all dimensions in their new order",
    "mT": "`ref.transpose(axes)` takes all dimensions in their new order",
    "data": "`ref.view()` maps the memory into this process",
    "base": "`ref.memory` is equal for all refs to one buffer",
    "to_device": "`ref.copy_to(pool.device(…).empty(ref.shape, ref.dtype))`",
    "clip": "`device.elementwise.minimum` and `maximum` with refs",
    "conj": '`device.tensor.permutation(ref, modes_a=…, modes_b=…, op_a="conj")`',
    "conjugate": '`device.tensor.permutation(ref, modes_a=…, modes_b=…, op_a="conj")`',
    "real": '`ref.astype("float32")` or float64 takes the real parts',
    "dot": "`ref @ other`",
    "trace": '`device.tensor.einsum("ii->", ref)`',
    "diagonal": '`device.tensor.einsum("ii->i", ref)`',
    "any": _COMPARED.format(name="any"),
    "all": _COMPARED.format(name="all"),
    "var": "means are requests: `d = ref - ref.mean()`, `(d * d).mean()`",
    "std": "means are requests: `d = ref - ref.mean()`, `(d * d).mean()`, and `device.elementwise.sqrt`",
    "ptp": "`ref.max() - ref.min()`",
    "resize": "`ref.reshape(shape)`; memory keeps its size",
    **dict.fromkeys(
        (
            "argmax", "argmin", "argpartition", "argsort", "partition", "searchsorted", "sort", "nonzero", "choose",
            "compress", "take", "put", "repeat", "cumprod", "cumsum", "round", "imag", "byteswap", "scatter_add",
            "scatter_max", "scatter_min", "reduced_view",
        ),
        _ELSEWHERE,
    ),
    **dict.fromkeys(("dump", "dumps", "tofile"), "`ref.numpy()` is an array that can be written to files"),
    **dict.fromkeys(("cstruct", "ctypes", "toDlpack"), "`ref.view()` and DLPack give the memory itself"),
    "itemsize": "`ref.dtype.itemsize`",
    "flags": "`ref.strides` tells how the elements lie",
    **dict.fromkeys(("getfield", "setfield", "setflags"), "a ref has elements of one type, which may be written"),
}  # fmt: skip
"""What to do, by the attribute."""
