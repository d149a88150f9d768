"""The arguments of a kernel as bytes: numbers of every kind and size, structures, and the places of arrays."""

from __future__ import annotations

import struct
from typing import Any, Final

import numpy as np
import pytest

from atomr_mp import errors
from atomr_mp.libraries.kernel_arguments import Packed, pack
from atomr_mp.libraries.kernel_module import CodeFacts, explain
from atomr_mp.protocol.layout import Layout
from atomr_mp.protocol.libraries.kernels import KernelOf
from atomr_mp.protocol.refs import Operand


class Array(Operand):
    """An array without memory."""

    def __init__(self, name: str) -> None:
        self.layout = Layout.contiguous("float32", (4,))
        self.name = name

    @property
    def memory(self) -> object:
        """The name of the memory."""
        return self.name


A, B, C = (Array(name) for name in "abc")


def kernel(*sizes: int) -> KernelOf:
    """Return a kernel with parameters of these sizes, aligned as C aligns them."""
    at, parameters = 0, []
    for size in sizes:
        alignment = min(size & -size, 8)
        at = -(-at // alignment) * alignment
        parameters.append((at, size))
        at += size
    return KernelOf(Array("module"), "_Z1kv", bytes(32), tuple(parameters), "k<int>")


def packed(sizes: tuple[int, ...], *arguments: Any, out: Any = (), inout: Any = ()) -> Packed:
    """Pack arguments."""
    return pack(
        kernel(*sizes),
        arguments,
        out,
        inout,
        lambda each: isinstance(each, Operand),
        lambda each: (each.memory, each.layout),
    )


NUMBERS: Final = [
    (1, 7, "int8", b"\x07"),
    (1, 255, "uint8", b"\xff"),
    (1, -128, "int8", b"\x80"),
    (1, True, "bool", b"\x01"),
    (2, 40000, "uint16", struct.pack("<H", 40000)),
    (4, -1, "int32", b"\xff" * 4),
    (4, 2**31, "uint32", struct.pack("<I", 2**31)),
    (4, True, "int32", struct.pack("<i", 1)),
    (4, 0.5, "float32", struct.pack("<f", 0.5)),
    (8, 0.1, "float64", struct.pack("<d", 0.1)),
    (8, 2**63, "uint64", struct.pack("<Q", 2**63)),
    (8, 1 + 2j, "complex64", struct.pack("<ff", 1, 2)),
    (16, 1 + 2j, "complex128", struct.pack("<dd", 1, 2)),
    (2, np.float16(1.5), "float16", np.float16(1.5).tobytes()),
    (4, np.float32(2), "float32", struct.pack("<f", 2)),
    (8, np.array(3, ">i8"), "int64", struct.pack("<q", 3)),
    (5, b"abcde", "bytes", b"abcde"),
]


@pytest.mark.parametrize(("size", "value", "kind", "expected"), NUMBERS, ids=[str(at) for at in range(len(NUMBERS))])
def test_a_number_has_the_size_of_its_parameter(size: int, value: Any, kind: str, expected: bytes) -> None:
    """Whole numbers become integers, others floats, and NumPy's stay what they are."""
    found = packed((size,), value)
    assert found.values == expected
    assert found.kinds == ((kind, -1),)


WRONG: Final = [
    (1, 256, "is 256, and its parameter has 1 byte, which hold whole numbers from -128 to 255"),
    (1, -129, "is -129, and its parameter"),
    (4, -(2**31) - 1, "is -2147483649, and .* from -2147483648 to 4294967295"),
    (4, 2**32, "is 4294967296, and its parameter"),
    (4, 2**20000, "is a int of too many digits, and its parameter"),
    (3, 1, "has 3 bytes, as no whole number has"),
    (2, 0.5, "has 2 bytes, as no number of this kind has"),
    (4, 1e300, "too large for a float32"),
    (4, 1j, "as no number of this kind has"),
    (4, np.float64(1), "a float64 of 8 bytes; its parameter has 4 bytes"),
    (4, b"abc", "is bytes of 3 bytes; its parameter has 4 bytes"),
    (8, np.ones(2), "`Device.put` makes a ref"),
    (8, "text", "is of type str"),
    (8, None, "is of type NoneType"),
    (4, A, "an array, whose address has 8 bytes; its parameter has 4 bytes"),
]


@pytest.mark.parametrize(("size", "value", "words"), WRONG, ids=[str(at) for at in range(len(WRONG))])
def test_what_does_not_fit_is_told(size: int, value: Any, words: str) -> None:
    """With the argument's place, and the kernel's name as the caller gave it."""
    with pytest.raises(errors.InvalidRequest, match=words) as told:
        packed((size,), value)
    assert "argument 0 of k<int>" in told.value.message


def test_arrays_have_places_by_what_becomes_of_them() -> None:
    """Inputs come first, then outputs, then arrays of both kinds. An array that is given twice is sent once."""
    found = packed((8, 4, 8, 8, 8), A, 1, B, C, A, out=[C], inout=[B])
    assert (found.inputs, found.out, found.inout) == ([A], [C], [B])
    assert found.kinds == (("address", 0), ("int32", -1), ("address", 2), ("address", 1), ("address", 0))
    assert found.values == bytes(8) + struct.pack("<i", 1) + bytes(4 + 24)


def test_outputs_are_among_the_arguments() -> None:
    """Each under one name."""
    for words, given in (("out of", {"out": [B]}), ("inout of", {"inout": [B]})):
        with pytest.raises(errors.InvalidRequest, match=f"{words} k<int> names what is none"):
            packed((8,), A, **given)
    with pytest.raises(errors.InvalidRequest, match="argument 0 of k<int> is named in out and in inout"):
        packed((8,), A, out=[A], inout=[A])
    with pytest.raises(errors.InvalidRequest, match="has 1 parameter; 2 arguments given"):
        packed((8,), A, A)


def test_equal_views_are_one_array() -> None:
    """What is written may be another object than the argument; only if memory and layout are the same."""
    first, same, other = Array("v"), Array("v"), Array("v")
    other.layout = Layout.contiguous("float32", (4,), 8)
    found = packed((8, 8, 8), first, A, same, inout=[Array("v")])
    assert (found.inputs, found.out, found.inout) == ([A], [], [first])
    assert [number for _, number in found.kinds] == [1, 0, 1]
    with pytest.raises(errors.InvalidRequest, match="none of the arrays among its arguments, nor an equal view"):
        packed((8,), first, out=[other])
    with pytest.raises(errors.InvalidRequest, match="argument 0 of k<int> is named in out and in inout"):
        packed((8,), first, out=[same], inout=[Array("v")])
    with pytest.raises(errors.InvalidRequest, match="nor an equal view"):
        packed((8,), first, out=[7])


def test_what_a_failed_write_has_left_is_told_by_its_global() -> None:
    """Not by the buffer that stands for the module; other errors stay as they are."""
    error = errors.GpuRefUndefined(
        "a buffer", failed_method="kernels.write", failed_request=7, failed_with="deadline_exceeded"
    )
    explain(error, "k", 1, CodeFacts(("table",)))
    assert error.message.startswith("a global of the module of kernel k (table) is undefined, since request 7 ")
    assert "failed with deadline_exceeded: write it again" in error.message
    for other in (errors.GpuRefUndefined("x", failed_method="blas.gemm"), errors.GpuRefStale("x", generation=3)):
        explain(other, "k", 4, CodeFacts(("table",)))
        assert other.message == "x"
    stale = errors.GpuRefStale("x", device=2, generation=3)
    explain(stale, "", 3, None)
    assert stale.message.startswith(
        "the module was loaded in generation 3 of device 2, which has ended: compile or load"
    )
