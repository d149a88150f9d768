"""A call of every declared request that takes about a tenth of a second on the host backend, or more."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import ml_dtypes
import numpy as np
import scipy.sparse

from atomr_mp.protocol.libraries import requests_of

Call = Callable[[], Any]


class Arrays:
    """Makes arrays of a device of the same random numbers in every run.

    Args:
        device: Where they are.
    """

    def __init__(self, device: Any) -> None:
        self.device: Final = device
        self._random: Final = np.random.default_rng(1)

    def __call__(self, *shape: int, dtype: str = "float64") -> Any:
        """Return normal numbers."""
        values = self._random.normal(size=shape)
        return self.device.put(values.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype))

    def full(self, *shape: int, dtype: str = "bfloat16") -> Any:
        """Return numbers that are all alike, for arrays that are too large to be sent."""
        return self.device.full(shape, 1.5, dtype)

    def definite(self, *shape: int, dtype: str = "float64") -> Any:
        """Return positive definite matrices."""
        return self.device.put((self._random.normal(size=shape) + 4 * shape[-1] * np.eye(shape[-1])).astype(dtype))

    def sparse(self, n: int, per_row: int) -> Any:
        """Return a lower triangle in csr, with a diagonal of large numbers."""
        made = scipy.sparse.random_array((n, n), density=per_row / n, rng=self._random, format="csr")
        return self.device.sparse.csr(
            scipy.sparse.csr_array(scipy.sparse.tril(made, -1) + 9 * scipy.sparse.eye_array(n))
        )


def _blas(of: Arrays) -> dict[str, Call]:
    it = of.device.blas
    x, y = of.full(2**25, dtype="float64"), of.full(2**25, dtype="float64")
    a, b = of(2000, 2000), of(2000, 2000)
    definite = of.definite(2000, 2000)
    wide = of.full(8000, 4000, dtype="float64")
    return {
        "axpy": lambda: it.axpy(x, y, alpha=2.0),
        "scal": lambda: it.scal(x, alpha=1.5),
        "nrm2": lambda: it.nrm2(x),
        "dot": lambda: it.dot(x, y),
        "inner": lambda: it.inner(x, y),
        "asum": lambda: it.asum(x),
        "iamax": lambda: it.iamax(x),
        "iamin": lambda: it.iamin(x),
        "copy": lambda: it.copy(x, y),
        "swap": lambda: it.swap(x, y),
        "rot": lambda: it.rot(x, y, c=0.6, s=0.8),
        "gemv": lambda: it.gemv(wide, x[:4000], y[:8000], alpha=2.0),
        "ger": lambda: it.ger(wide, y[:8000], x[:4000]),
        "geam": lambda: it.geam(wide, wide, beta=2.0),
        "syrk": lambda: it.syrk(a, uplo="L"),
        "trsm": lambda: it.trsm(definite, b, uplo="L"),
        "gemm": lambda: it.gemm(a, b),
        "gemm_strided_batched": lambda: it.gemm_strided_batched(of(50, 300, 300), of(50, 300, 300)),
    }


def _blas_lt(of: Arrays) -> dict[str, Call]:
    a = of(1000, 1000, dtype="bfloat16")
    return {"matmul": lambda: of.device.blas_lt.matmul(a, a, epilogue="gelu")}


def _fft(of: Arrays) -> dict[str, Call]:
    x = of(1000003, dtype="complex128")
    return {"transform": lambda: of.device.fft.transform(x)}


def _elementwise(of: Arrays) -> dict[str, Call]:
    it, x, y = of.device.elementwise, of.full(2**25), of.full(2**25)
    found: dict[str, Call] = {}
    for name, request in requests_of("elementwise").items():
        arrays = (x, y) if "y" in request.__struct_fields__ else (x,)
        found[name] = functools.partial(getattr(it, name), *arrays)
    return found | {
        "where": lambda: it.where(it.less(x, y).result(), x, y),
        "cast": lambda: it.cast(x, dtype="float64"),
    }


def _rng(of: Arrays) -> dict[str, Call]:
    it, count = of.device.rng.generator(seed=1), {"size": (5 * 10**6,)}
    return {
        "bits": lambda: it.bits(**count),
        "uniform": lambda: it.uniform(**count),
        "normal": lambda: it.normal(**count),
        "lognormal": lambda: it.lognormal(**count),
        "exponential": lambda: it.exponential(**count),
        "cauchy": lambda: it.cauchy(**count),
        "gamma": lambda: it.gamma(shape=0.5, size=(10**6,)),
        "beta": lambda: it.beta(a=0.5, b=2.0, size=(10**6,)),
        "poisson": lambda: it.poisson(lam=1e5, **count),
        "choice": lambda: it.choice(of.device.full((1000,), 1e-3, "float64"), **count),
    }


def _solver(of: Arrays) -> dict[str, Call]:
    it, n = of.device.solver, 600
    a, sides = of.definite(1800, 1800), of(1800, 1800)
    small, few = of.definite(3000, 20, 20), of(3000, 20, 20)
    square, z = of(800, 800), of.definite(n, n, dtype="complex128")
    tau, pivots = of(1000), it.getrf(of.definite(1800, 1800)).result()
    every = it.getrf_batched(of.definite(3000, 20, 20)).result()
    return {
        "getrf": lambda: it.getrf(of(1500, 1500)),
        "getrs": lambda: it.getrs(a, pivots, sides),
        "getrf_batched": lambda: it.getrf_batched(small),
        "getrs_batched": lambda: it.getrs_batched(small, every, few),
        "potrf": lambda: it.potrf(of.definite(2500, 2500)),
        "potrs": lambda: it.potrs(a, of(1800, 1800)),
        "potrf_batched": lambda: it.potrf_batched(of.definite(3000, 20, 20)),
        "potrs_batched": lambda: it.potrs_batched(small, of(3000, 20, 20)),
        "geqrf": lambda: it.geqrf(of(1000, 1000)),
        "orgqr": lambda: it.orgqr(of(1000, 1000), tau),
        "ungqr": lambda: it.ungqr(of(n, n, dtype="complex128"), of(n, dtype="complex128")),
        "ormqr": lambda: it.ormqr(of(1000, 1000), tau, of(1000, 1000)),
        "unmqr": lambda: it.unmqr(z, of(n, dtype="complex128"), of(n, n, dtype="complex128")),
        "gesvd": lambda: it.gesvd(of(n, n)),
        "gesvdj_batched": lambda: it.gesvdj_batched(of(1000, 20, 20)),
        "syevd": lambda: it.syevd(of(n, n)),
        "heevd": lambda: it.heevd(of(n, n, dtype="complex128")),
        "sygvd": lambda: it.sygvd(of(n, n), of.definite(n, n)),
        "hegvd": lambda: it.hegvd(of(n, n, dtype="complex128"), of.definite(n, n, dtype="complex128")),
        "solve": lambda: it.solve(a, sides),
        "lstsq": lambda: it.lstsq(of(3000, 1000), of(3000)),
        "inv": lambda: it.inv(a),
        "det": lambda: it.det(a),
        "cholesky": lambda: it.cholesky(a),
        "qr": lambda: it.qr(of(1000, 1000)),
        "svd": lambda: it.svd(square),
        "svdvals": lambda: it.svdvals(square),
        "eigh": lambda: it.eigh(square),
        "eigvalsh": lambda: it.eigvalsh(square),
        "spsolve": lambda: it.spsolve(of.sparse(4000, 20), of(4000)),
    }


def _sparse(of: Arrays) -> dict[str, Call]:
    it, a, b = of.device.sparse, of.sparse(30000, 120), of.sparse(4000, 100)
    dense = of.full(4000, 1000, dtype="float64")
    return {
        "structure": lambda: it.structure(*it.arrays(a).result(), a.data, shape=a.shape),
        "arrays": lambda: it.arrays(it.convert(a, to="csc").result()),
        "spmv": lambda: it.spmv(a, of(30000)),
        "spmm": lambda: it.spmm(b, dense),
        "spgemm": lambda: it.spgemm(b, b),
        "spsv": lambda: it.spsv(a, of(30000), uplo="L"),
        "spsm": lambda: it.spsm(b, dense, uplo="L"),
        "sddmm": lambda: it.sddmm(dense[:, :500], dense[:, :500].T, b),
        "convert": lambda: it.convert(a, to="coo"),
        "dense_to_sparse": lambda: it.dense_to_sparse(of.device.zeros((5000, 8000), "float32")),
        "sparse_to_dense": lambda: it.sparse_to_dense(b),
    }


def _tensor(of: Arrays) -> dict[str, Call]:
    it, x = of.device.tensor, of.full(64, 64, 64, 64, dtype="float64")
    f = of.full(300, 300, 60, dtype="float64")
    modes = {"modes_a": "abcd", "modes_c": "abcd"}
    return {
        "contraction": lambda: it.contraction(f, f, modes_a="abk", modes_b="ack", modes_c="bc"),
        "reduction": lambda: it.reduction(x, modes_a="abcd", modes_c="bd", op_a="exp"),
        "permutation": lambda: it.permutation(x, modes_a="abcd", modes_b="dcba", op_a="exp"),
        "elementwise_binary": lambda: it.elementwise_binary(x, x, **modes, op_a="tanh"),
        "elementwise_trinary": lambda: it.elementwise_trinary(x, x, x, modes_b="abcd", **modes, op_a="mish"),
        "einstein_sum": lambda: it.einsum("abk,ack->abc", f, f),
    }


def _dnn(of: Arrays) -> dict[str, Call]:
    it, dtype = of.device.dnn, {"dtype": "bfloat16"}
    image, weight, x = of.full(8, 32, 128, 128), of(32, 32, 3, 3, **dtype), of.full(8000, 1000)
    q = of(2, 8, 800, 64, **dtype)
    y = it.max_pool2d(image, 2).result()
    rows = {"normalized_shape": 1000, "save_statistics": True}
    out, lse = it.scaled_dot_product_attention(q, q, q, save_lse=True).result()
    _, mean, invstd = it.layer_norm(x, **rows).result()
    cells = {"mode": "lstm", "hidden_size": 64}
    steps, packed = of(2000, 4, 32, dtype="float32"), of(4 * 64 * (32 + 64 + 2), dtype="float32")
    parts = [of(*shape) for shape in ((8000, 1000), (8000, 2000), (8000,), (8000,))]

    def backward() -> Any:
        seen, *_, reserve = it.rnn(steps, packed, save_reserve=True, **cells).result()
        return it.rnn_backward(steps, packed, seen, seen, reserve, **cells)

    return {
        "conv": lambda: it.conv2d(image, weight, padding=1),
        "conv_transpose": lambda: it.conv_transpose2d(image, weight),
        "conv_input": lambda: it.conv2d_input(weight, image, padding=1),
        "conv_weight": lambda: it.conv2d_weight(image, image, size=(3, 3), padding=1),
        "pool": lambda: it.avg_pool2d(image, 5, stride=1),
        "pool_backward": lambda: it.pool_backward(image, y, y, kernel_size=2),
        "softmax": lambda: it.softmax(x),
        "softmax_backward": lambda: it.softmax_backward(x, x),
        "activation": lambda: it.gelu(x),
        "activation_backward": lambda: it.activation_backward(x, x, kind="gelu_tanh"),
        "local_response_norm": lambda: it.local_response_norm(image, size=5),
        "local_response_norm_backward": lambda: it.local_response_norm_backward(image, image, size=5),
        "dropout": lambda: it.dropout(x, seed=1),
        "dropout_backward": lambda: it.dropout_backward(x, seed=1),
        "batch_norm": lambda: it.batch_norm(image, of(32, dtype="float32"), of.device.ones((32,), "float32")),
        "batch_norm_training": lambda: it.batch_norm_training(image),
        "layer_norm": lambda: it.layer_norm(x, **rows),
        "rms_norm": lambda: it.rms_norm(x, **rows),
        "instance_norm": lambda: it.instance_norm(image),
        "group_norm": lambda: it.group_norm(image, num_groups=4),
        "norm_backward": lambda: it.norm_backward(x, x, invstd, mean, normalized_shape=1000),
        "scaled_dot_product_attention": lambda: it.scaled_dot_product_attention(q, q, q),
        "scaled_dot_product_attention_backward": lambda: it.scaled_dot_product_attention_backward(
            q, q, q, out, out, lse
        ),
        "rnn_pack": lambda: it.rnn_pack(parts, mode="lstm", hidden_size=2000, input_size=1000),
        "rnn": lambda: it.rnn(steps, packed, **cells),
        "rnn_backward": backward,
    }


CALLS: Final[dict[str, Callable[[Arrays], dict[str, Call]]]] = {
    "blas": _blas,
    "blas_lt": _blas_lt,
    "fft": _fft,
    "elementwise": _elementwise,
    "rng": _rng,
    "solver": _solver,
    "sparse": _sparse,
    "tensor": _tensor,
    "dnn": _dnn,
}
"""By library: what returns the calls of its requests, by name; each returns its reply, and waits for none but those of
requests before it."""
