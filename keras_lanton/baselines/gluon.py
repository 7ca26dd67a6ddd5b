"""Gluon: LMO steps with a radius per layer."""

import re
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_lanton.arguments import check_bool
from keras_lanton.arguments import check_numbers
from keras_lanton.base import State
from keras_lanton.base import backend
from keras_lanton.baselines.elementwise import DECAYS
from keras_lanton.baselines.elementwise import as_in
from keras_lanton.norm_optimizer import NormOptimizer
from keras_lanton.norm_optimizer import lookahead
from keras_lanton.norm_optimizer import wide
from keras_lanton.norms import RMS
from keras_lanton.norms import Norm
from keras_lanton.norms import Sign
from keras_lanton.norms import Spectral
from keras_lanton.roles import Layer

Tensor = Any


@keras.saving.register_keras_serializable(package="keras_lanton")
class Gluon(NormOptimizer):
    """LMO steps of a radius t per layer, fixed or by its smoothness.

        B <- b1 B + (1 - b1) G                                from 0
        X <- X + eta t LMO(B)
        t given, or ||B||_* / (L0 + L1 ||B||_*)

    With every radius the same it is unconstrained Scion.

    Args:
        learning_rate: eta, a common factor of all radii: float, schedule, or
            callable.
        radii: Dict from regular expressions on variable paths to radii, at
            least 0; the first that matches counts, 1 where none does.
        smoothness: Likewise, to pairs (L0, L1), at least 0 and not both 0:
            these layers' radii follow their gradient.
        beta_1: Decay of the momentum, in [0, 1).
        nesterov: Whether b1 B + (1 - b1) G goes to the LMO.
        ns_steps: Newton-Schulz steps, at least 1.
        ns_coefficients: A name, or rows `(a, b, c)`; see `Lanton`.
        ns_dtype: Of the products in Newton-Schulz; see `Lanton`.
        max_temporary_bytes: See `Lanton`.
        momentum_dtype: Defaults to each variable's own.
        weight_decay: Decoupled, at eta; at least 0, or None as published.
        **kwargs: Arguments of `LayerwiseOptimizer`.

    Raises:
        ValueError: For a wrong argument, naming it, or a pattern that matches
            no variable.

    References:
        Riabinin et al. 2025, Gluon: Making Muon and Scion Great Again,
        arXiv 2505.13416, algorithm 1 and its adaptive radii. The authors fit
        L0 and L1 to an earlier run.
    """

    arguments = (*NormOptimizer.arguments, "radii", "smoothness", "beta_1")

    def __init__(
        self,
        learning_rate: Any = 1e-3,
        *,
        radii: Mapping[str, float] | None = None,
        smoothness: Mapping[str, Sequence[float]] | None = None,
        beta_1: float = 0.95,
        nesterov: bool = False,
        ns_steps: int = 5,
        ns_coefficients: str | Sequence[Sequence[float]] = "jordan",
        ns_dtype: str = "auto",
        max_temporary_bytes: int = 2**29,
        momentum_dtype: str | None = None,
        weight_decay: float | None = None,
        name: str = "gluon",
        **kwargs: Any,
    ) -> None:
        check_bool("nesterov", nesterov)
        check_numbers({"beta_1": DECAYS["beta_1"]}, locals())
        _check("radii", radii, "numbers of at least 0", _is_radius)
        _check(
            "smoothness",
            smoothness,
            "pairs (L0, L1) of numbers of at least 0, not both 0",
            _is_smoothness,
        )
        super().__init__(
            learning_rate,
            noise=None,
            nesterov=nesterov,
            ns_steps=ns_steps,
            ns_coefficients=ns_coefficients,
            ns_dtype=ns_dtype,
            max_temporary_bytes=max_temporary_bytes,
            momentum_dtype=momentum_dtype,
            weight_decay=weight_decay,
            name=name,
            **kwargs,
        )
        self.radii = dict(radii or {})
        self.smoothness = {
            pattern: list(pair) for pattern, pair in (smoothness or {}).items()
        }
        self.beta_1 = float(beta_1)

    def make_norms(self, hidden: Spectral) -> dict[str, Norm]:
        """The norms of Scion and Lanton."""
        return {"hidden": hidden, "embedding": Sign(), "vector": RMS()}

    def buffers(self) -> dict[str, list[tuple[tuple[int, ...], str]]]:
        """Also checks that every pattern matches a variable."""
        paths = [layer.path for layer in self.moving_layers]
        for name in ("radii", "smoothness"):
            for pattern in getattr(self, name):
                if not any(re.search(pattern, path) for path in paths):
                    raise ValueError(
                        f"`{name}` has a pattern that matches no variable "
                        f"path. Allowed: {paths}. Received: {pattern!r}"
                    )
        return super().buffers()

    def step(
        self,
        G: Sequence[Tensor],
        X: Sequence[Tensor],
        state: State,
        *,
        active: Tensor,
        eta: Tensor,
        t: Tensor,
    ) -> tuple[list[Tensor], State]:
        """The steps of the class' docstring; see the base class."""
        B_last = [wide(b) for b in state["momentum"]]
        G = [ops.cast(g, b.dtype) for g, b in zip(G, B_last, strict=True)]
        moves = ops.cast(active, "float32")
        c = (1.0 - self.beta_1) * moves
        keep = 1.0 - eta * self.weight_decays() * moves
        c, keep = backend.unpack(c, keep)
        B = backend.lerp(B_last, G, c, in_place=True)
        rates = eta * self.step_scales() * ops.take(moves, self._plan.owners)
        smoothness = self._smoothness()

        M = lookahead(B, G, c) if self.nesterov else lambda _: B
        X = list(X)
        for stack, matrices in self._plan.stacks:
            B_stack = stack.gather(M(stack.indices))
            O = self.norms[stack.role].lmo(B_stack)
            radii = ops.take(rates, matrices)
            if np.isfinite(smoothness[matrices]).any():
                # <B, LMO(B)> = -||B||_*, whichever way the matrices lie.
                dual = -ops.sum(ops.cast(B_stack, "float32") * O, axis=(-2, -1))
                flips = self._plan.flips[matrices]
                dual = dual * ops.convert_to_tensor(flips)
                radii = radii * _adaptive_radius(dual, smoothness[matrices])
            O = backend.scaled(O, radii[:, None, None])
            self.move(X, stack, O, keep)
        new = {
            "momentum": as_in(state["momentum"], B),
            "last_step": ops.where(active, t, state["last_step"]),
        }
        return X, {**state, **new}

    def scale_of(self, layer: Layer) -> float:
        """The layer's fixed radius; 1 where it follows the gradient."""
        found = _first(self.radii, layer.path)
        return 1.0 if found is None else float(found)

    def get_config(self) -> dict[str, Any]:
        """Every argument and the decided roles, as JSON types."""
        config = super().get_config()
        del config["noise"]
        return config

    def _smoothness(self) -> np.ndarray:
        """L0 and L1 of each matrix, `(matrices, 2)`; NaN where not given."""
        pairs = [
            _first(self.smoothness, layer.path) or (np.nan, np.nan)
            for layer in self.moving_layers
        ]
        per_layer = np.array(pairs, "float32")
        return np.take(per_layer, self._plan.owners, axis=0)


def _adaptive_radius(dual: Tensor, smoothness: np.ndarray) -> Tensor:
    """||B||_* / (L0 + L1 ||B||_*), and 1 where L0 is NaN."""
    given = np.isfinite(smoothness[:, 0])
    L0, L1 = (
        ops.convert_to_tensor(np.where(given, column, 1.0).astype("float32"))
        for column in smoothness.T
    )
    below = L0 + L1 * dual
    radius = dual / ops.where(below > 0, below, 1.0)
    return ops.where(ops.convert_to_tensor(given), radius, 1.0)


def _first(table: Mapping[str, Any], path: str) -> Any:
    """The value of the first pattern that matches, or None."""
    return next(
        (value for key, value in table.items() if re.search(key, path)), None
    )


def _is_radius(value: Any) -> bool:
    return _is_number(value) and value >= 0


def _is_smoothness(value: Any) -> bool:
    return (
        isinstance(value, (list, tuple))
        and len(value) == 2
        and all(map(_is_radius, value))
        and sum(value) > 0
    )


def _is_number(value: Any) -> bool:
    numbers = (int, float, np.number)
    return (
        isinstance(value, numbers)
        and not isinstance(value, bool)
        and bool(np.isfinite(value))
    )


def _check(name: str, table: Any, wanted: str, allows: Any) -> None:
    """ValueError unless None or a dict from patterns to what is wanted."""
    try:
        good = table is None or (
            isinstance(table, Mapping)
            and all(isinstance(key, str) and re.compile(key) for key in table)
            and all(allows(value) for value in table.values())
        )
    except re.error:
        good = False
    if not good:
        raise ValueError(
            f"`{name}` must be None or a dict from regular expressions on "
            f"variable paths to {wanted}. Received: {name}={table!r}"
        )
