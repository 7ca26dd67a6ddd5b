"""The spectral norm by the fastest means of this machine."""

import dataclasses
from collections.abc import Callable
from typing import Any

from keras_lanton.backends import Devices
from keras_lanton.backends import backend
from keras_lanton.coefficients import coefficient_rows
from keras_lanton.core.norms import Spectral
from keras_lanton.core.nuclear_norm import frobenius_nuclear_norm
from keras_lanton.core.nuclear_norm import inner_products
from keras_lanton.core.nuclear_norm import lanczos_nuclear_norm
from keras_lanton.core.nuclear_norm import randomized_svd_nuclear_norm
from keras_lanton.core.nuclear_norm import svd_nuclear_norm
from keras_lanton.core.whitening import EntryNoise
from keras_lanton.core.whitening import whiten
from keras_lanton.fast.batching import one_by_one
from keras_lanton.fast.dispatch import cheapest_form
from keras_lanton.settings import NewtonSchulz
from keras_lanton.settings import NoiseAdaptiveRate
from keras_lanton.types import Tensor


@dataclasses.dataclass(frozen=True, kw_only=True)
class FastSpectral(Spectral):
    """`Spectral` by the cheapest form of Newton-Schulz, one matrix at a time.

    Args:
        dtype: Dtype of the products in Newton-Schulz. `"auto"`: float32 on a
            CPU, elsewhere float16 (bfloat16 on a TPU), summed up in float32.
        devices: Devices that share out the matrices of a stack, as the
            backend's `devices` gives them. Defaults to one.
    """

    dtype: str = "auto"
    devices: Devices | None = None

    def lmo(self, B: Tensor, noise: EntryNoise | None = None) -> Tensor:
        """U V^T [Alg. 1, line 6]."""
        if noise is not None and self._shared_by is not None:
            # Devices share out one tensor, not several.
            B, noise = whiten(B, "float32", noise=noise.of_each()), None
        return super().lmo(B, noise)

    def polar(self, rows: int, columns: int) -> Callable[..., Tensor]:
        """The cheapest form of Newton-Schulz; see the base class."""
        return cheapest_form(rows, columns, rows=self.rows, dtype=self.dtype)

    def map_matrices(
        self, function: Callable[[Any], Tensor], stack: Any
    ) -> Tensor:
        """In the cache, or shared out; see the base class."""
        first = stack[0] if isinstance(stack, tuple) else stack
        each = one_by_one(function, min(first.shape[-2:]))
        if self._shared_by is None:
            return each(stack)
        return backend.share_out(each, stack, self._shared_by)

    @property
    def _shared_by(self) -> Devices | None:
        """The devices among which a stack is shared out here.

        None where each process has a stack of its own.
        """
        dealt_out = self.devices is None or self.devices.number is not None
        return None if dealt_out else self.devices

    def temporary_bytes(self, rows: int, columns: int) -> float:
        """Memory of one matrix while it is worked on, on each device.

        Devices that share out the work have all matrices and results too,
        unless weights are split over them.
        """
        needed = super().temporary_bytes(rows, columns)
        if self.devices is None:
            return needed
        whole = 0 if self.devices.split else 4 * 2 * rows * columns
        return needed / self.devices.count + whole


def make_spectral(
    newton_schulz: NewtonSchulz,
    noise: NoiseAdaptiveRate | None,
    devices: Devices | None = None,
) -> FastSpectral:
    """The spectral norm of an optimizer's settings.

    Args:
        newton_schulz: Settings of Newton-Schulz.
        noise: Settings of the noise, or None.
        devices: Devices that share out the matrices.
    """
    return FastSpectral(
        rows=newton_schulz.rows,
        nuclear_norm=None if noise is None else _estimator(noise),
        dtype=newton_schulz.dtype,
        devices=devices,
    )


def _estimator(
    noise: NoiseAdaptiveRate,
) -> Callable[[Tensor], Tensor] | None:
    """The estimator of the nuclear norm; None stands for <D, polar(D)>."""
    # A quotient of two norms of like matrices needs no more.
    in_units_of_signal = noise.alpha_unit == "signal"
    return {
        "auto": frobenius_nuclear_norm
        if in_units_of_signal
        else fastest_nuclear_norm,
        "frobenius": frobenius_nuclear_norm,
        "lanczos": lanczos_nuclear_norm,
        "newton_schulz": None,
        "svd": svd_nuclear_norm,
        "randomized_svd": randomized_svd_nuclear_norm,
    }[noise.estimator]


def fastest_nuclear_norm(D: Tensor) -> Tensor:
    """`lanczos_nuclear_norm` on a CPU, else `polar_nuclear_norm`.

    Args:
        D: `(..., m, n)`, float32.

    Returns:
        `(...)`, float32; NaN where D is not finite.
    """
    if backend.device() == "cpu":
        return lanczos_nuclear_norm(D)
    return polar_nuclear_norm(D)


def polar_nuclear_norm(D: Tensor) -> Tensor:
    """The inner product <D, polar(D)>, by five rows of Newton-Schulz.

    Nothing but products: QR and eigenvalues of small matrices, which Lanczos
    needs, wait for the host on a GPU. In half precision where that is fast:
    the rounding of the products hardly shows in the sum.

    Args:
        D: `(..., m, n)`, float32.

    Returns:
        `(...)`, float32; NaN where D is not finite.
    """
    rows = coefficient_rows("you", 5)
    polar = cheapest_form(*D.shape[-2:], rows=rows, dtype="auto")
    return inner_products(D, polar(D))
