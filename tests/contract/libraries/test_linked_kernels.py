"""Codes of several forms that are linked to one module, without a GPU."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pytest

import atomr_mp
from atomr_mp import errors
from atomr_mp_workers.compiling import toolkits
from atomr_mp_workers.compiling.compiler import Compiler
from atomr_mp_workers.compiling.compiler_process import confines
from atomr_mp_workers.compiling.jobs import CodeKind, CompileJob
from atomr_mp_workers.compiling.limits import CompileLimits
from tests.support import ACTORS, BACKEND, DEADLINE_S, Ledger

TRIPLE: Final = "__device__ float triple(float x) { return 3 * x; }"
ADD: Final = "__device__ float more(float x) { return x + 1; }"
USE: Final = """extern __device__ float triple(float); extern __device__ float more(float);
extern "C" __global__ void use(float* x, int n) { if (threadIdx.x < n) x[threadIdx.x] = more(triple(x[threadIdx.x])); }
"""
SCALE: Final = """extern __device__ float triple(float);
template <class T> __global__ void scale(T* x, T factor, int n) {
    if (threadIdx.x < n) x[threadIdx.x] = triple(x[threadIdx.x]) * factor / 3;
}"""


@pytest.fixture(scope="module")
def codes() -> dict[str, bytes]:
    """Relocatable codes, by a source's name and its form."""
    toolkit = toolkits.find()
    if toolkit is None or toolkit.nvjitlink is None:
        pytest.skip("NVRTC or nvJitLink is not installed")
    compiler = Compiler(toolkit, None, CompileLimits(idle=False), confined=confines())
    of_device = "80" if BACKEND == "host" else capability()

    def made(source: str, kind: CodeKind) -> bytes:
        job = CompileJob(
            source, "compute_80" if kind is CodeKind.PTX else f"sm_{of_device}", kind, options=("-rdc=true",)
        )
        return compiler.submit(job, time.monotonic() + DEADLINE_S).result().code.code

    try:
        return {
            f"{name}.{kind}": made(source, kind)
            for name, source in (("triple", TRIPLE), ("more", ADD), ("use", USE))
            for kind in (CodeKind.CUBIN, CodeKind.PTX, CodeKind.LTOIR)
            if name != "more" or kind is CodeKind.PTX
        }
    finally:
        compiler.close()


def capability() -> str:
    """Return the GPU's compute capability, times ten: CUBINs are of one."""
    asked = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader", "--id=0"]
    return subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip().replace(".", "")


@pytest.fixture(scope="module")
def device() -> Iterator[atomr_mp.Device]:
    """A device of a pool whose actor has functions for kernels."""
    with Ledger() as ledger, ledger.start(f"{ACTORS}/kerneled.py:Kerneled") as pool:
        yield pool.device(0)


@pytest.mark.parametrize(
    "forms", [("ltoir", "ltoir"), ("ptx", "ltoir"), ("cubin", "ptx"), ("ltoir", "cubin")], ids=" ".join
)
def test_codes_of_all_forms_are_linked(
    device: atomr_mp.Device, codes: dict[str, bytes], forms: tuple[str, str]
) -> None:
    """By a list, and by names; known by their first bytes, PTX also as text."""
    use, triple = codes[f"use.{forms[0]}"], codes[f"triple.{forms[1]}"]
    listed = device.kernels.load([use, triple, codes["more.ptx"].rstrip(b"\0").decode()]).result(DEADLINE_S)
    named = device.kernels.load({"use": use, "lib/triple": triple, "more": codes["more.ptx"]}).result(DEADLINE_S)
    for module in (listed, named):
        assert list(module) == ["use"]
        assert module["use"].parameters == ((0, 8), (8, 4))


def test_a_source_is_linked_with_code(device: atomr_mp.Device, codes: dict[str, bytes]) -> None:
    """The source calls its functions; name expressions hold, and the module is loaded like any."""
    for code in (codes["triple.ltoir"], codes["triple.ptx"]):
        module = device.kernels.compile(SCALE, names=["scale<float>"], link=[code]).result(DEADLINE_S)
        x = device.put(np.ones(4, np.float32))
        module["scale<float>"](x, 2.0, 4, grid=1, block=4, inout=x)
        assert x.numpy().tolist() == [2.0] * 4


def test_what_is_missing_is_told(device: atomr_mp.Device, codes: dict[str, bytes]) -> None:
    """By the linker, for the source as for codes; an error of the source has its line."""
    for reply in (
        device.kernels.load({"use": codes["use.cubin"], "more": codes["more.ptx"]}),
        device.kernels.compile(SCALE, names=["scale<float>"], link=[codes["more.ptx"]]),
    ):
        with pytest.raises(errors.CompilationFailed, match=r"not linked for sm_.* \(`arch` names another") as told:
            reply.result(DEADLINE_S)
        assert "triple" in told.value.log
    with pytest.raises(errors.CompilationFailed, match="not compiled") as told:
        device.kernels.compile("wrong;", link=[codes["more.ptx"]]).result(DEADLINE_S)
    assert "    wrong;" in told.value.log
    garbled = codes["use.ltoir"][:64] + bytes(len(codes["use.ltoir"]) - 64)
    with pytest.raises(errors.CompilationFailed):
        device.kernels.load([garbled, codes["triple.ltoir"], codes["more.ptx"]]).result(DEADLINE_S)


WRONG: Final[dict[str, tuple[str, Any]]] = {
    "none": ("0 codes are given to be linked; 1 to 64 are", []),
    "many": ("65 codes are given to be linked; 1 to 64 are", [b"\x7fELF"] * 65),
    "no code": ("code 1 is a int; code is bytes", [b"\x7fELF", 7]),
    "unknown": ("'x' begins with b'garbage', as no CUBIN, PTX", {"x": b"garbage"}),
    "large": ("the codes have more than 67108864 bytes together, with code 1", [b"\x7fELF" + bytes(2**25)] * 2),
    "one": ("a int is given for the codes to link", 7),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_linked_is_told_at_once(device: atomr_mp.Device, name: str) -> None:
    """Before anything is sent."""
    words, given = WRONG[name]
    with pytest.raises(errors.InvalidRequest, match=words):
        device.kernels.load(given)
    if given:
        with pytest.raises(errors.InvalidRequest, match=words):
            device.kernels.compile(SCALE, link=given)


def test_code_that_a_link_would_leave_out_is_refused(device: atomr_mp.Device) -> None:
    """Kernels that are not relocatable would be missing without a word."""
    with pytest.raises(errors.InvalidRequest, match="the linked code has no kernels"):
        device.kernels.load(".version 7.8\n.target sm_80\n.address_size 64\n").result(DEADLINE_S)
    executable = b"\x7fELF".ljust(16, b"\0") + b"\2\0"
    for reply in (device.kernels.load([executable]), device.kernels.compile(SCALE, link={"a.cubin": executable})):
        with pytest.raises(errors.InvalidRequest, match="cubin is not relocatable, so a link would leave it out"):
            reply.result(DEADLINE_S)


def test_names_of_codes_have_the_form_of_files(device: atomr_mp.Device) -> None:
    """The worker says so, before a process is started."""
    for reply in (
        device.kernels.load({"../x": b"\x7fELF"}),
        device.kernels.compile(SCALE, link={"../x": b"\x7fELF"}),
    ):
        with pytest.raises(errors.InvalidRequest, match=r"'\.\./x' is not a name of a file"):
            reply.result(DEADLINE_S)
    with pytest.raises(errors.InvalidRequest, match="kind is of one code"):
        device.kernels.load([b"\x7fELF"], "cubin")
