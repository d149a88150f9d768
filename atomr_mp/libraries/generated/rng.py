"""Requests of rng as methods. Written by `scripts/library-methods` from the declared requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, SupportsFloat, SupportsIndex

from atomr_mp.libraries.base import LibraryReference, element_type, lengths, real
from atomr_mp.protocol.libraries import rng
from atomr_mp.protocol.refs import Operand

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from atomr_mp.client.reply import Reply


class RngRequests(LibraryReference):
    """Random numbers that depend on a seed and an offset, and on nothing else.

    A request says where its numbers begin: the same request gives the same numbers, after a restart of the worker too.
    Each number takes its fixed share of the generator's words, so that the numbers from an offset on continue those
    before it, whatever their law. A uniform number u lies in (0, 1]: 0 is left out, as cuRAND does. Host and CUDA agree
    in law; their numbers need not be equal.

    Laws are computed from u by inversion, gamma and beta by rejection after Marsaglia and Tsang.

    `LibraryReference` says what all methods have in common.
    """

    library: ClassVar[str] = "rng"

    def bits(
        self,
        out: Operand | None = None,
        *,
        size: SupportsIndex | Sequence[SupportsIndex] | None = None,
        dtype: DTypeLike | None = None,
        deadline_s: float | None = None,
    ) -> Reply:
        """Draw whole numbers whose every bit is random: all values of the type, equally likely.

        Those of mrg32k3a fall short of 2³² by 209 values.

        Args:
            out: Written; `size`, or any shape where it is left out.
            size: The shape; that of out if it is left out.
            dtype: The element type, uint32 if both it and out are left out.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(
            rng.Bits(
                out=out,
                size=None if size is None else lengths("size", size),
                dtype=None if dtype is None else element_type(dtype),
            ),
            deadline_s,
        )

    def uniform(
        self,
        out: Operand | None = None,
        *,
        low: SupportsFloat = 0.0,
        high: SupportsFloat = 1.0,
        size: SupportsIndex | Sequence[SupportsIndex] | None = None,
        dtype: DTypeLike | None = None,
        deadline_s: float | None = None,
    ) -> Reply:
        """Draw from the uniform law: low + (high - low)·u, with u in (0, 1].

        Args:
            out: Written; `size`, or any shape where it is left out.
            low: The lower end, which is left out, but for rounding.
            high: The upper end, which is not left out.
            size: The shape; that of out if it is left out.
            dtype: The element type, float32 if both it and out are left out.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(
            rng.Uniform(
                out=out,
                low=real("low", low),
                high=real("high", high),
                size=None if size is None else lengths("size", size),
                dtype=None if dtype is None else element_type(dtype),
            ),
            deadline_s,
        )

    def normal(
        self,
        out: Operand | None = None,
        *,
        loc: SupportsFloat = 0.0,
        scale: SupportsFloat = 1.0,
        size: SupportsIndex | Sequence[SupportsIndex] | None = None,
        dtype: DTypeLike | None = None,
        deadline_s: float | None = None,
    ) -> Reply:
        """Draw from the normal law.

        Args:
            out: Written; `size`, or any shape where it is left out.
            loc: The mean.
            scale: The standard deviation.
            size: The shape; that of out if it is left out.
            dtype: The element type, float32 if both it and out are left out.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(
            rng.Normal(
                out=out,
                loc=real("loc", loc),
                scale=real("scale", scale),
                size=None if size is None else lengths("size", size),
                dtype=None if dtype is None else element_type(dtype),
            ),
            deadline_s,
        )

    def lognormal(
        self,
        out: Operand | None = None,
        *,
        mean: SupportsFloat = 0.0,
        sigma: SupportsFloat = 1.0,
        size: SupportsIndex | Sequence[SupportsIndex] | None = None,
        dtype: DTypeLike | None = None,
        deadline_s: float | None = None,
    ) -> Reply:
        """Draw numbers whose logarithm follows the normal law.

        Args:
            out: Written; `size`, or any shape where it is left out.
            mean: The mean of the logarithm.
            sigma: The standard deviation of the logarithm.
            size: The shape; that of out if it is left out.
            dtype: The element type, float32 if both it and out are left out.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(
            rng.Lognormal(
                out=out,
                mean=real("mean", mean),
                sigma=real("sigma", sigma),
                size=None if size is None else lengths("size", size),
                dtype=None if dtype is None else element_type(dtype),
            ),
            deadline_s,
        )

    def exponential(
        self,
        out: Operand | None = None,
        *,
        scale: SupportsFloat = 1.0,
        size: SupportsIndex | Sequence[SupportsIndex] | None = None,
        dtype: DTypeLike | None = None,
        deadline_s: float | None = None,
    ) -> Reply:
        """Draw from the exponential law: -scale·ln(u).

        Args:
            out: Written; `size`, or any shape where it is left out.
            scale: The mean: one divided by the rate.
            size: The shape; that of out if it is left out.
            dtype: The element type, float32 if both it and out are left out.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(
            rng.Exponential(
                out=out,
                scale=real("scale", scale),
                size=None if size is None else lengths("size", size),
                dtype=None if dtype is None else element_type(dtype),
            ),
            deadline_s,
        )

    def cauchy(
        self,
        out: Operand | None = None,
        *,
        loc: SupportsFloat = 0.0,
        scale: SupportsFloat = 1.0,
        size: SupportsIndex | Sequence[SupportsIndex] | None = None,
        dtype: DTypeLike | None = None,
        deadline_s: float | None = None,
    ) -> Reply:
        """Draw from Cauchy's law: loc + scale·tan(π·(u - ½)).

        Args:
            out: Written; `size`, or any shape where it is left out.
            loc: The median.
            scale: Half the distance between the quartiles.
            size: The shape; that of out if it is left out.
            dtype: The element type, float32 if both it and out are left out.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(
            rng.Cauchy(
                out=out,
                loc=real("loc", loc),
                scale=real("scale", scale),
                size=None if size is None else lengths("size", size),
                dtype=None if dtype is None else element_type(dtype),
            ),
            deadline_s,
        )

    def gamma(
        self,
        out: Operand | None = None,
        *,
        shape: SupportsFloat,
        scale: SupportsFloat = 1.0,
        size: SupportsIndex | Sequence[SupportsIndex] | None = None,
        dtype: DTypeLike | None = None,
        deadline_s: float | None = None,
    ) -> Reply:
        """Draw from the gamma law of a shape and a scale; with philox4_32_10 only.

        Args:
            out: Written; `size`, or any shape where it is left out.
            shape: The law's shape, k.
            scale: The law's scale, θ; the mean is k·θ.
            size: The shape of the array; that of out if it is left out.
            dtype: The element type, float32 if both it and out are left out.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(
            rng.Gamma(
                shape=real("shape", shape),
                out=out,
                scale=real("scale", scale),
                size=None if size is None else lengths("size", size),
                dtype=None if dtype is None else element_type(dtype),
            ),
            deadline_s,
        )

    def beta(
        self,
        out: Operand | None = None,
        *,
        a: SupportsFloat,
        b: SupportsFloat,
        size: SupportsIndex | Sequence[SupportsIndex] | None = None,
        dtype: DTypeLike | None = None,
        deadline_s: float | None = None,
    ) -> Reply:
        """Draw from the beta law; with philox4_32_10 only.

        Args:
            out: Written; `size`, or any shape where it is left out.
            a: The first exponent; the mean is a / (a + b).
            b: The second exponent.
            size: The shape; that of out if it is left out.
            dtype: The element type, float32 if both it and out are left out.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(
            rng.Beta(
                a=real("a", a),
                b=real("b", b),
                out=out,
                size=None if size is None else lengths("size", size),
                dtype=None if dtype is None else element_type(dtype),
            ),
            deadline_s,
        )

    def poisson(
        self,
        out: Operand | None = None,
        *,
        lam: SupportsFloat = 1.0,
        size: SupportsIndex | Sequence[SupportsIndex] | None = None,
        deadline_s: float | None = None,
    ) -> Reply:
        """Draw counts from Poisson's law, as uint32.

        Args:
            out: Written; `size`, or any shape where it is left out.
            lam: The mean, up to 2³¹.
            size: The shape; that of out if it is left out.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(
            rng.Poisson(out=out, lam=real("lam", lam), size=None if size is None else lengths("size", size)), deadline_s
        )

    def choice(
        self,
        p: Operand,
        out: Operand | None = None,
        *,
        size: SupportsIndex | Sequence[SupportsIndex] | None = None,
        deadline_s: float | None = None,
    ) -> Reply:
        """Draw indices, as int64, each as often as its weight says.

        Weights are not negative, and need not sum up to 1.

        Args:
            p: Read; shape (k). Strides: a stride that is not 0.
            out: Written; `size`, or any shape where it is left out.
            size: The shape; that of out if it is left out.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.

        Raises:
            NumericalError: A weight is negative or no number, or their sum is 0 or infinite. By the reply.
        """
        return self._request(rng.Choice(p=p, out=out, size=None if size is None else lengths("size", size)), deadline_s)
