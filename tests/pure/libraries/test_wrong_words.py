"""What callers may write for parameters: element types in any form; what is wrong is said in words."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any, Final

import ml_dtypes
import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from atomr_mp import errors
from atomr_mp.device import lengths
from atomr_mp.libraries.kernels import DeviceKernels
from atomr_mp.libraries.program import Program
from atomr_mp.protocol import dtypes
from atomr_mp.protocol.declaration.arguments import NUMBERS, declared
from atomr_mp.protocol.libraries.base import is_factor, scalar
from atomr_mp.protocol.libraries.kernels import KernelOf
from atomr_mp.protocol.words import choices
from tests.cases.library_cases import CASES, Case
from tests.direct import DirectDevice
from tests.fakes.fake_arrays import FakeArray
from tests.in_turn import in_turn

ENTRANCES: Final = ("dnn", "fft", "memory", "rng", "sparse")

ODD: Final[tuple[Any, ...]] = (
    None, "no such word", "", b"L", [], {}, (), (1,), ("a",), object(), 1.5, -1, 10**30, float("nan"), 1j, True,
    np.float32, np.dtype("f4"), np.zeros(2), np.array(2), "0", [[1]], int, Ellipsis,
)  # fmt: skip
"""Values that hardly any parameter can have."""


LONG: Final[tuple[Any, ...]] = (
    "x" * 300_000, b"x" * 300_000, [7] * 100_000, tuple(range(100_000)), 10**100_000, {"x" * 50: "y" * 100_000},
)  # fmt: skip
"""Values that are too long to be quoted in a message."""


class Recorder:
    """A device whose replies only have the request; nothing is sent."""

    def put(self, array: Any) -> FakeArray:
        """Return an array that holds these values."""
        made = np.asarray(array)
        return FakeArray.of(made, dtypes.name_for(made.dtype))

    def request(self, library: str, request: Any, deadline_s: float | None, **_how: Any) -> Any:  # noqa: ARG002 - a device's
        """Return a reply, with the answer of a request for a sparse matrix."""

        def result() -> Any:
            indices = request.indices
            described = (request.to, *request.shape, indices.size, request.blocksize, indices.dtype)
            return FakeArray.of(0, "uint8"), None, described

        return types.SimpleNamespace(request=request, result=result)


def method_of(case: Case, request: Any) -> tuple[Any, dict[str, Any]]:
    """Return the method that makes a request, and its arguments."""
    face, kind = importlib.import_module(f"atomr_mp.libraries.{case.library}").Reference(Recorder()), case.request
    if "source" in request.held:
        source = request.source
        kinds = {} if source.is_quasi else {"seed": source.seed}
        face = face.generator(kind=source.kind, offset=source.offset, dimensions=source.dimensions, **kinds)
    hints = declared(kind).parameters
    given_as = {
        name: scalar(value) if is_factor(hints.get(name)) and isinstance(value, NUMBERS) else value
        for name, value in ((name, getattr(request, name)) for name in request.__struct_fields__)
        if name not in request.held
    }
    return getattr(face, request.name), given_as


def parameters(case: Case) -> Iterator[tuple[str, Any]]:
    """Return the parameters of a request's method, with their types."""
    for name, hint in declared(case.request).parameters.items():
        if name not in case.request.held:
            yield name, hint


def for_some(case: Case, count: int, test: Callable[[Any, Any], None]) -> None:
    """Have a test made with some requests of a case, and random numbers."""
    found = settings(
        max_examples=count, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
    )
    given(case.drawn(), st.randoms(use_true_random=False))(found(test))()


@in_turn("case", CASES)
def test_a_wrong_word_is_told_with_the_right_ones(case: Case) -> None:
    """The error names the parameter, the word, all that may be there, and the one that was meant."""

    def told(request: Any, _random: Any) -> None:
        method, arguments = method_of(case, request)
        for name, hint in parameters(case):
            words = choices(hint)
            for word in words:
                wrong = f"{word}?"
                with pytest.raises(errors.InvalidRequest) as refused:
                    method(**arguments | {name: wrong})
                text = refused.value.message
                assert f"{name} is {wrong!r}; it must be one of {', '.join(map(str, words))}" in text
                assert isinstance(word, int) or len(word) < 2 or "did you mean " in text

    for_some(case, 2, told)


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_no_value_of_a_parameter_raises_anything_but_a_typed_error(case: Case) -> None:
    """Whatever the value is; what is wrong names the parameter, or what does not fit it."""

    def typed(request: Any, random: Any) -> None:
        method, arguments = method_of(case, request)
        for name in arguments:
            for odd in random.sample(ODD, 8):
                with contextlib.suppress(errors.InvalidRequest, errors.BorrowConflict, errors.Unsupported):
                    method(**arguments | {name: odd})

    for_some(case, 4, typed)


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_no_message_quotes_a_whole_long_value(case: Case) -> None:
    """Of any request, for any parameter."""

    def short(request: Any, random: Any) -> None:
        method, arguments = method_of(case, request)
        for name in arguments:
            for long in random.sample(LONG, 3):
                with contextlib.suppress(errors.BorrowConflict, errors.Unsupported):
                    assert len(message_of(method, arguments | {name: long})) <= errors.MAX_INVALID_CHARS

    for_some(case, 2, short)


def message_of(method: Any, arguments: dict[str, Any]) -> str:
    """Return the words in which a request is refused, nothing if it is not."""
    try:
        method(**arguments)
    except errors.InvalidRequest as error:
        return error.message
    return ""


KERNEL: Final[KernelOf] = KernelOf(FakeArray.of(np.zeros(1, np.uint8), "uint8"), "k", bytes(32), ())

LONG_IN_KERNELS: Final[tuple[tuple[str, Callable[[Any], Any]], ...]] = (
    ("source is .xxx.*length <= 4194304", lambda kernels: kernels.compile("x" * 5_000_000)),
    ("source is b'xxx", lambda kernels: kernels.compile(b"x" * 5_000_000)),
    ("headers is ", lambda kernels: kernels.compile("", headers={f"{at}.h": "" for at in range(10_000)})),
    ("names is ", lambda kernels: kernels.compile("", names=["x" * 5000] * 100)),
    ("arch is ", lambda kernels: kernels.compile("", arch="x" * 5000)),
    ("grid is ", lambda kernels: kernels.launch(KERNEL, grid=[1] * 5000, block=1)),
    ("shared is a int of too many digits", lambda kernels: kernels.launch(KERNEL, grid=1, block=1, shared=10**5000)),
)


@in_turn("words, ask", LONG_IN_KERNELS)
def test_no_message_of_kernels_does(words: str, ask: Callable[[Any], Any]) -> None:
    """It names the argument, and its bound."""
    with pytest.raises(errors.InvalidRequest, match=words) as refused:
        ask(DeviceKernels(Recorder()))
    assert len(refused.value.message) <= errors.MAX_INVALID_CHARS


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_truth_value_is_no_number(case: Case) -> None:
    """For no parameter that is a number or a factor, of any library; `Device.full` and `fill` take it as an element."""

    def refused(request: Any, _random: Any) -> None:
        method, arguments = method_of(case, request)
        for name, hint in parameters(case):
            if is_factor(hint) or hint in {int, float, int | None, float | None}:
                for truth in (True, False, np.True_, np.array(False)):
                    with pytest.raises(errors.InvalidRequest, match=name):
                        method(**arguments | {name: truth})

    for_some(case, 1, refused)


def matrix_of(kind: str) -> Any:
    """Return an array that a transform takes."""
    return FakeArray.of(np.zeros((4, 4)), "float32" if kind.startswith("r") else "complex64")


def entrances() -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Return what callers use besides the requests' own methods, each with arguments that fit."""
    import scipy.sparse

    made = {name: importlib.import_module(f"atomr_mp.libraries.{name}").Reference(Recorder()) for name in ENTRANCES}
    for name in (f"{kind}fft{more}" for kind in ("", "i", "r", "ir") for more in ("", "2", "n")):
        method = getattr(made["fft"], name)
        yield name, method, dict.fromkeys(inspect.signature(method).parameters) | {
            "x": matrix_of(name), "norm": "ortho", **({"axis": 0} if name.endswith("t") else {"axes": (0, 1)}),
        }  # fmt: skip
    eye = scipy.sparse.csr_array(np.eye(4))
    for name in ("csr", "csc", "coo", "bsr", "blocked_ell"):
        blocks = {"blocksize": 2} if name == "blocked_ell" else {"blocksize": (2, 2)} if name == "bsr" else {}
        yield name, getattr(made["sparse"], name), {"matrix": eye, "shape": (4, 4), **blocks}
    image, way = (
        FakeArray.of(np.zeros((1, 1, 2, 2)), "float32"),
        {"stride": 1, "padding": (1, 0), "alpha": 2, "beta": 0},
    )
    layers: dict[str, dict[str, Any]] = {
        "conv2d": {"x": image, "weight": image, "groups": 1, "dilation": 1, "activation": "relu", "allow_tf32": False},
        "conv_transpose2d": {"x": image, "weight": image, "output_padding": 0},
        "conv2d_input": {"weight": image, "dy": image, "size": (1, 3)},
        "conv2d_weight": {"x": image, "dy": image, "size": (3, 1)},
        "max_pool2d": {"x": image, "kernel_size": 2},
        "avg_pool2d": {"x": image, "kernel_size": 2, "count_include_pad": False},
    }
    for name, layer in layers.items():
        yield name, getattr(made["dnn"], name), way | layer
    yield "gelu", made["dnn"].gelu, {"x": image, "approximate": "tanh", "alpha": 1}
    yield "log_softmax", made["dnn"].log_softmax, {"x": image, "dim": 1}
    sizes = {"mode": "tanh", "input_size": 1, "hidden_size": 1, "num_layers": 1, "bidirectional": False}
    yield "rnn_unpack", made["dnn"].rnn_unpack, {"weights": FakeArray.of(np.zeros(4), "float32"), **sizes}
    yield "generator", made["rng"].generator, {"seed": 1, "kind": "philox4_32_10", "offset": 0}
    yield "fill", made["memory"].fill, {"array": matrix_of(""), "value": 1}
    yield "copy", made["memory"].copy, {"source": matrix_of(""), "target": matrix_of("")}
    for name in ("input", "empty"):
        more = {"name": "x"} if name == "input" else {}
        yield f"program's {name}", getattr(Program(Recorder()), name), {**more, "shape": (2,), "dtype": "f4"}
    yield "shape", lengths, {"shape": 3}


@in_turn("entrance", [pytest.param(each[1:], id=each[0]) for each in entrances()])
def test_no_value_at_any_other_entrance_does_either(entrance: tuple[Any, dict[str, Any]]) -> None:
    """Transforms by SciPy's names, matrices of SciPy's, generators, fills and copies, arrays of programs."""
    method, arguments = entrance
    method(**arguments)
    for name in arguments:
        for odd in (*ODD, (3, 3), (2, 2), [0, 1], (1, 2, 3)):
            with contextlib.suppress(errors.InvalidRequest, errors.BorrowConflict, errors.Unsupported):
                method(**arguments | {name: odd})


def forms(name: str) -> list[Any]:
    """Return the ways in which NumPy's users name an element type."""
    found = dtypes.to_numpy(name)
    short = [] if hasattr(ml_dtypes, name) else [found.str, found.char]
    return [name, found, found.type, *short]


@pytest.mark.parametrize("name", dtypes.ITEM_BYTES)
def test_an_element_type_has_all_of_its_names(name: str) -> None:
    """NumPy's and ml_dtypes' types are taken as their names are."""
    assert [dtypes.name_for(form) for form in forms(name)] == [name] * len(forms(name))
    program = Program(DirectDevice())
    for at, form in enumerate(forms(name)):
        assert program.input(f"x{at}", (2,), form).dtype == name
        assert program.empty((2,), form).dtype == name


@pytest.mark.parametrize(
    ("case", "name"),
    [
        pytest.param(case, name, id=f"{case.name} {name}")
        for case in CASES
        for name, hint in parameters(case)
        if choices(hint) and all(word in dtypes.ITEM_BYTES for word in choices(hint))
    ],
)
def test_every_parameter_that_names_an_element_type_takes_all_names(case: Case, name: str) -> None:
    """The same request is made of each; a type that it does not have is named with those that it has."""
    words = choices(dict(parameters(case))[name])

    def same(request: Any, _random: Any) -> None:
        method, arguments = method_of(case, request)
        for word in words:
            made = [outcome(method, arguments | {name: form}) for form in forms(word)]
            assert made == made[:1] * len(made)
        for other in set(dtypes.ITEM_BYTES) - set(words):
            for form in forms(other):
                with pytest.raises(errors.InvalidRequest, match=f"{name} is '{other}'; it must be one of {words[0]}"):
                    method(**arguments | {name: form})

    for_some(case, 3, same)


def outcome(method: Any, arguments: dict[str, Any]) -> Any:
    """Return the parameters of the request that a method makes, or its error."""
    try:
        reply = method(**arguments)
    except errors.InvalidRequest as error:
        return error.message
    told: Any = msgspec.structs.asdict(reply.request)
    return {key: value for key, value in told.items() if key in {"dtype", "index"}}


def test_what_is_no_element_type_is_told() -> None:
    """None too, which NumPy takes for float64; the nearest name is said."""
    wrong: list[Any] = [None, "flot32", [], "f4,f4", object, {}, 3, "complex256", np.dtype("S3")]
    for each in wrong:
        with pytest.raises(errors.InvalidRequest):
            dtypes.name_for(each)
    with pytest.raises(errors.InvalidRequest, match="'flot32' is no element type; did you mean float32"):
        dtypes.name_for("flot32")
