from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import pytest

import atomr_mp
from atomr_mp import errors
from atomr_mp.libraries.dnn import Reference
from tests.cases.dnn_cases import REQUESTS, assert_agrees, requests
from tests.direct import DirectDevice, assert_all_agree, host_actor, refused, run_by
from tests.fakes.fake_arrays import FakeArray
from tests.gpu import on_device
from tests.support import Ledger
from tests.tolerances import assert_close

pytestmark = on_device.NEEDS_CUPY

run: Final = functools.partial(on_device.run, "dnn")
run_on_host: Final = run_by(host_actor("dnn"))
DNN: Final[Any] = Reference(DirectDevice())


@pytest.fixture(params=["whatever is installed", "cupy"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What serves: cuDNN if it is installed, or CuPy all the same."""
    if request.param == "cupy":
        monkeypatch.setattr(on_device.library("dnn"), "_engines", [])
    return str(request.param)


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("name", REQUESTS)
def test_results_are_those_of_the_definitions(name: str) -> None:
    """Whatever sizes, strides, options, factors, types; nothing else is written."""
    assert_all_agree(requests(REQUESTS[name]), 60, assert_agrees, run)


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("name", REQUESTS)
def test_the_same_request_gives_the_same_bits(name: str) -> None:
    """Ten times, with one plan."""
    assert_all_agree(requests(REQUESTS[name]), 10, assert_agrees, _ten_times)


def _ten_times(request: Any) -> None:
    arrays: Any = [array for _, _, array in request.arrays() if array is not None]
    slabs = {array.number: array.slab for array in arrays}
    before, first = {number: slab.copy() for number, slab in slabs.items()}, {}
    for turn in range(10):
        for number, slab in slabs.items():
            slab[:] = before[number]
        run(request)
        for number, slab in slabs.items():
            if not turn:
                first[number] = slab.copy()
            np.testing.assert_array_equal(slab, first[number])


# --- larger sizes -----------------------------------------------------------------------------------------------------


class Call(NamedTuple):
    """Requests that follow each other."""

    shapes: tuple[tuple[int, ...], ...]
    """Of the arrays that they get."""
    do: Callable[..., Any]
    """Does them, given the library, the function that waits for a request's results, and arrays; returns results."""
    length: int
    """Terms of a sum."""


def _convolutions(dnn: Any, done: Any, x: Any, weight: Any, bias: Any) -> list[Any]:
    y = done(dnn.conv2d(x, weight, bias, padding=1, activation="relu"))
    by_x = done(dnn.conv2d_input(weight, y, size=x.shape[2:], padding=1))
    by_weight = done(dnn.conv2d_weight(x, y, size=(3, 3), padding=1))
    return [y, by_x, by_weight, done(dnn.conv_transpose2d(y, weight, stride=2, padding=1))]


def _depthwise(dnn: Any, done: Any, x: Any, weight: Any) -> list[Any]:
    y = done(dnn.conv1d(x, weight, groups=x.shape[1], stride=2))
    by_weight = done(dnn.conv1d_weight(x, y, size=(5,), groups=x.shape[1], stride=2))
    return [y, done(dnn.conv1d_input(weight, y, size=x.shape[2:], groups=x.shape[1], stride=2)), by_weight]


def _pools(dnn: Any, done: Any, x: Any) -> list[Any]:
    y, average = done(dnn.max_pool2d(x, 3, stride=2, padding=1)), done(dnn.avg_pool2d(x, 2))
    return [y, average, done(dnn.pool_backward(x, y, y, kernel_size=3, stride=2, padding=1))]


def _elements(dnn: Any, done: Any, x: Any) -> list[Any]:
    y, log = done(dnn.softmax(x)), done(dnn.log_softmax(x, dim=0))
    found = [y, log, done(dnn.softmax_backward(y, x)), done(dnn.softmax_backward(log, x, dim=0, log=True))]
    for kind in ("relu", "sigmoid", "tanh", "gelu", "gelu_tanh", "silu", "elu", "softplus"):
        found += [done(dnn.activation(x, kind=kind)), done(dnn.activation_backward(x, x, kind=kind))]
    return [*found, done(dnn.dropout(x, p=0.3, seed=2**63 + 5, offset=2**40 + 1))]


def _norms(dnn: Any, done: Any, x: Any, weight: Any, bias: Any) -> list[Any]:
    last = x.shape[-1:]
    y, mean, invstd = done(dnn.layer_norm(x, weight, bias, normalized_shape=last, save_statistics=True))
    back = done(dnn.norm_backward(x, y, invstd, mean, weight, normalized_shape=last))
    root = done(dnn.rms_norm(x, weight, normalized_shape=last))
    of_batch, of_mean, of_invstd = done(dnn.batch_norm_training(x))
    by_batch = done(dnn.norm_backward(x, of_batch, of_invstd, of_mean, mode="batch"))
    return [y, *back, root, of_batch, by_batch, done(dnn.group_norm(x, num_groups=4)), done(dnn.instance_norm(x))]


def _attention(dnn: Any, done: Any, query: Any, key: Any, value: Any) -> list[Any]:
    options = {"is_causal": True, "dropout_p": 0.1, "seed": 3}
    y, lse = done(dnn.scaled_dot_product_attention(query, key, value, save_lse=True, **options))
    plain = done(dnn.scaled_dot_product_attention(query, key, value))
    return [y, plain, *done(dnn.scaled_dot_product_attention_backward(query, key, value, y, y, lse, **options))]


def _network(mode: str) -> Callable[..., Any]:
    def do(dnn: Any, done: Any, x: Any, weights: Any) -> list[Any]:
        cells = {"mode": mode, "hidden_size": 32, "num_layers": 2, "bidirectional": True}
        y, *last, reserve = done(dnn.rnn(x, weights, save_reserve=True, **cells))
        return [y, *last, *done(dnn.rnn_backward(x, weights, y, y, reserve, **cells))]

    return do


CALLS: Final = {
    "convolutions": Call(((4, 16, 19, 23), (24, 16, 3, 3), (24,)), _convolutions, 4 * 19 * 23 * 24),
    "depthwise": Call(((3, 24, 200), (24, 1, 5)), _depthwise, 600),
    "pools": Call(((3, 5, 33, 41),), _pools, 9),
    "elements": Call(((300, 1031),), _elements, 1031),
    "norms": Call(((64, 32, 96), (96,), (96,)), _norms, 64 * 96),
    "attention": Call(((2, 8, 130, 64), (2, 2, 150, 64), (2, 2, 150, 64)), _attention, 4 * 150),
    "lstm": Call(((7, 5, 24), (2 * 128 * (24 + 32 + 64 + 32) + 2 * 2 * 2 * 128,)), _network("lstm"), 640),
    "gru": Call(((7, 5, 24), (2 * 96 * (24 + 32 + 64 + 32) + 2 * 2 * 2 * 96,)), _network("gru"), 640),
}


def _numbers(call: Call, dtype: str) -> list[Any]:
    from atomr_mp.protocol import dtypes

    random = np.random.default_rng(5)
    return [random.uniform(-0.5, 0.5, shape).astype(dtypes.to_numpy(dtype)) for shape in call.shapes]


def _directly(call: Call, dtype: str, do: Callable[[Any], Any]) -> list[Any]:
    """Return the results of requests that a function does."""

    def done(request: Any) -> Any:
        made = {name: FakeArray(layout) for name, layout in request.results().items()}
        do(type(request)(**{name: getattr(request, name) for name in request.__struct_fields__} | made))
        found = [*made.values()]
        return found[0] if len(found) == 1 else found

    given = [FakeArray.of(values, dtype) for values in _numbers(call, dtype)]
    return [each.array for each in call.do(DNN, done, *given)]


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("name", CALLS)
def test_larger_sizes_give_what_the_host_gives(name: str, dtype: str) -> None:
    """Forward and backward, one after the other; and the same bits each time."""
    call = CALLS[name]
    found, expected = _directly(call, dtype, run), _directly(call, dtype, run_on_host)
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other.astype(np.float64), dtype, call.length, 16.0 * max(1.0, abs(other).max()))
    for _ in range(3):
        for one, other in zip(_directly(call, dtype, run), found, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_masks_are_those_of_the_host(dtype: str) -> None:
    """Bit for bit, wherever the words begin."""
    ones = np.ones((700, 1031))
    for offset in (0, 3, 2**33 + 5, 2**63 - 1):
        found = []
        for do in (run_on_host, run):
            x, out, mask = FakeArray.of(ones, dtype), FakeArray.of(0 * ones, dtype), FakeArray.of(0 * ones, "uint8")
            do(DNN.dropout(x, out, mask, p=0.4, seed=2**64 - 1, offset=offset, save_mask=True))
            found += [out.array, mask.array]
        np.testing.assert_array_equal(found[2], found[0])
        np.testing.assert_array_equal(found[3], found[1])


@pytest.mark.usefixtures("engine")
def test_a_second_backward_is_refused_and_gives_nothing() -> None:
    """The error comes after its work; what it has written cannot be taken for a gradient."""
    one = {"mode": "lstm", "hidden_size": 4}
    x, weights = (FakeArray.of(np.full(shape, 0.5), "float32") for shape in ((3, 2, 4), (4 * 4 * 8 + 32,)))
    forward = DNN.rnn(x, weights, save_reserve=True, **one)
    made = {name: FakeArray(layout) for name, layout in forward.results().items()}
    run(type(forward)(**{name: getattr(forward, name) for name in forward.__struct_fields__} | made))
    outputs = [FakeArray.of(np.zeros(shape), "float32") for shape in (x.shape, weights.shape, (1, 2, 4), (1, 2, 4))]
    names = dict(zip(("dx", "dweights", "dh0", "dc0"), outputs, strict=True))
    backward = DNN.rnn_backward(x, weights, made["out"], made["out"], made["reserve"], **names, **one)
    run(backward)
    assert all(np.isfinite(each.array).all() for each in outputs)
    with pytest.raises(errors.NumericalError, match="used it up"):
        run(backward)
    assert all(np.isnan(each.array).all() for each in outputs)


def test_bad_requests_leave_the_context_well() -> None:
    """Some hundreds are refused by the check; then a convolution is right."""
    assert sum(refused(requests(cls), 5) for cls in REQUESTS.values()) > 300
    assert _directly(CALLS["depthwise"], "float32", run)[0].any()
    on_device.synchronize()


# --- programs ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pool() -> Iterator[atomr_mp.Pool]:
    """A pool on the GPU."""
    with Ledger() as ledger, ledger.start(backend="cuda") as pool:
        yield pool


def _as_list(found: Any) -> Any:
    return list(found) if isinstance(found, tuple) else found


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("name", CALLS)
def test_a_graph_gives_bit_for_bit_what_its_steps_give(pool: atomr_mp.Pool, name: str, dtype: str) -> None:
    """It is recorded whole, and launched several times."""
    device, call = pool.device(0), CALLS[name]
    given = [device.put(each) for each in _numbers(call, dtype)]
    expected = [each.numpy() for each in call.do(device.dnn, lambda reply: _as_list(reply.result()), *given)]
    before = pool.status().devices[0].graphs
    with device.program() as p:
        inputs = [p.input(f"x{at}", each.shape, dtype) for at, each in enumerate(given)]
        p.returns(*call.do(p.dnn, _as_list, *inputs))
    values: dict[str, Any] = {f"x{at}": each for at, each in enumerate(given)}
    for _ in range(4):
        found = p.run(**values).result()
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one.numpy(), other)
    after = pool.status().devices[0].graphs
    assert after is not None
    assert after.captured > (before.captured if before else 0)
    assert after.capture_failed == (before.capture_failed if before else 0)
