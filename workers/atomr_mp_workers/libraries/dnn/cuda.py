"""Neural networks on the CUDA backend: by cuDNN what it serves, the rest by CuPy.

A request that comes to CuPy is done by the same functions as on the host.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import cupy
import numpy as np

from atomr_mp.protocol.libraries import requests_of
from atomr_mp.protocol.libraries.base import LibraryRequest
from atomr_mp.protocol.libraries.dnn import Dropout, DropoutBackward, RnnPack
from atomr_mp.protocol.libraries.dnn_shapes import Sweep
from atomr_mp_workers.libraries.base import Library, LibraryContext
from atomr_mp_workers.libraries.dnn.arrays import ArrayDnn
from atomr_mp_workers.libraries.dnn.base import Product, least
from atomr_mp_workers.libraries.dnn.cudnn import engines
from atomr_mp_workers.libraries.dnn.engine import Enqueue
from atomr_mp_workers.libraries.dnn.kernels import ACTIVATED, DERIVED, KEPT, MAXIMA
from atomr_mp_workers.libraries.dnn.products import Products
from atomr_mp_workers.libraries.dnn.trials import layers
from atomr_mp_workers.libraries.dnn.verdicts import Verdicts
from atomr_mp_workers.memory.blocks import Holder

if TYPE_CHECKING:
    from atomr_mp_workers.device.base import Stream


LARGEST_WINDOW: Final = 1024
"""Elements of a window that one thread looks at, one after the other."""

WITH_PRODUCTS: Final = frozenset(name for name, cls in requests_of("dnn").items() if hasattr(cls, "allow_tf32"))
"""Requests that multiply matrices."""


class CupyDnn(ArrayDnn):
    """All requests on CuPy's arrays."""

    scores_at_once = 2**22
    elements_at_once = 2**26

    def __init__(self, context: LibraryContext, stream: Stream) -> None:
        super().__init__(context, stream)
        self._verdicts: Final = Verdicts()
        self._products: Final = Products(stream, self.fixed_workspace)

    def kept(self, p: float, seed: int, offset: int, count: int) -> Any:
        """Return for each of some elements whether it is kept."""
        return KEPT(np.uint64(seed), np.uint64(offset), least(p), cupy.empty(count, bool))

    def products(self, request: Any) -> Product:
        """Return the function that multiplies matrices for a request."""
        return self._products.of(request)

    def activated(self, kind: str, x: Any) -> Any:
        """Return an activation of each element."""
        return ACTIVATED[kind](x) if kind in ACTIVATED else super().activated(kind, x)

    def derived(self, kind: str, x: Any, dy: Any) -> Any:
        """Return gradients by the elements, from those by their activations."""
        return DERIVED[kind](x, dy) if kind in DERIVED else super().derived(kind, x, dy)

    def maxima(self, x: Any, sweeps: Sequence[Sweep], shape: tuple[int, ...]) -> Any:
        """Return the largest elements of windows."""
        if math.prod(sweep.size for sweep in sweeps) > LARGEST_WINDOW:
            return super().maxima(x, sweeps, shape)
        more = 3 - len(sweeps)
        ways = zip(*[Sweep(1, 1, 1, 0, 0)] * more, *sweeps, strict=True)
        size, stride, dilation, before, _ = ways
        lengths = (1,) * more + x.shape[2:], (1,) * more + shape[2:], size, stride, dilation, before
        return MAXIMA(x, x.dtype.type(-math.inf), *itertools.chain(*lengths), cupy.empty(shape, x.dtype))

    def planned(self, name: str) -> Enqueue:
        """Return the function that does the requests of a name, with what it takes long to make for these."""
        if name in WITH_PRODUCTS:
            self._products.open()
        found: Enqueue = getattr(self, name)
        return found

    def demand(self, right: Any, message: str) -> Any:
        """Have the request go on; the error comes after its work."""
        return self._verdicts.demand(right, message)


WITHOUT_PLANS: Final = frozenset({"dropout", "dropout_backward", "rnn_pack"})
"""Requests that no engine has. Each seed of dropout would make room for itself among the plans that are kept."""


class CudaDnn(Library):
    """Requests on device memory, each by a plan of the first engine that has one, or by CuPy."""

    slow = frozenset(requests_of("dnn")) - WITHOUT_PLANS

    def __init__(self, context: LibraryContext, stream: Stream) -> None:
        super().__init__(context, stream)
        self._arrays: Final = CupyDnn(context, stream)
        self._engines: Final = [engine(self) for engine in engines]
        self._served_by = ""

    def trials(self, holder: Holder) -> Iterable[LibraryRequest]:
        """Return some layers."""
        return layers(self.context, holder)

    def planned(self, request: Any) -> Enqueue:
        """Return the function that does a request."""
        for engine in self._engines:
            found = engine.planned(request)
            if found is not None:
                self._serve_by("cuDNN")
                return found
        self._serve_by(self._served_by or "CuPy")
        return self._arrays.planned(request.name)

    def _serve_by(self, engine: str) -> None:
        """Show which engine serves: cuDNN from its first plan on."""
        if engine != self._served_by:
            self._served_by = engine
            self.context.served_by("dnn", engine)

    def dropout(self, request: Dropout) -> None:
        """Keep some of the elements of x, and write the mask if that is wanted."""
        self._arrays.dropout(request)

    def dropout_backward(self, request: DropoutBackward) -> None:
        """Keep the same elements of dy."""
        self._arrays.dropout_backward(request)

    def rnn_pack(self, request: RnnPack) -> None:
        """Pack weights."""
        self._arrays.rnn_pack(request)

    def _prepare(self, request: Any) -> Enqueue:
        return self.planned(request)

    def _run(self, request: Any, plan: Enqueue) -> Any:
        return plan(request)

    prepare_conv = prepare_conv_transpose = prepare_conv_input = prepare_conv_weight = _prepare
    conv = conv_transpose = conv_input = conv_weight = _run
    prepare_pool = prepare_pool_backward = prepare_softmax = prepare_softmax_backward = _prepare
    pool = pool_backward = softmax = softmax_backward = _run
    prepare_activation = prepare_activation_backward = _prepare
    activation = activation_backward = _run
    prepare_local_response_norm = prepare_local_response_norm_backward = prepare_norm_backward = _prepare
    local_response_norm = local_response_norm_backward = norm_backward = _run
    prepare_batch_norm = prepare_batch_norm_training = prepare_layer_norm = prepare_rms_norm = _prepare
    batch_norm = batch_norm_training = layer_norm = rms_norm = _run
    prepare_instance_norm = prepare_group_norm = prepare_rnn = prepare_rnn_backward = _prepare
    instance_norm = group_norm = rnn = rnn_backward = _run
    prepare_scaled_dot_product_attention = prepare_scaled_dot_product_attention_backward = _prepare
    scaled_dot_product_attention = scaled_dot_product_attention_backward = _run


Implementation: Final = CudaDnn
