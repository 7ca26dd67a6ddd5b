"""Gluon: LMO updates with a radius per variable."""

import dataclasses
import re
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_lanton import backends
from keras_lanton.norms.norms import RMS
from keras_lanton.norms.norms import Rule
from keras_lanton.norms.norms import Sign
from keras_lanton.norms.norms import Spectral
from keras_lanton.optimizers.direction import Changes
from keras_lanton.optimizers.direction import Direction
from keras_lanton.optimizers.lmo import LMOOptimizer
from keras_lanton.orthogonalization.newton_schulz import NewtonSchulz
from keras_lanton.types import State
from keras_lanton.types import Tensor
from keras_lanton.validation import is_number
from keras_lanton.validation import shown
from keras_lanton.variables.layout import VariableLayout
from keras_lanton.variables.spec import VariableSpec
from keras_lanton.variables.stacks import Stack

backend = backends.load()


@keras.saving.register_keras_serializable(package="keras_lanton")
class Gluon(LMOOptimizer):
    """LMO updates with a radius t per variable, fixed or by its smoothness.

        B <- b1 B + (1 - b1) G                                from 0
        X <- X + eta t LMO(B)
        t given, or ||B||_* / (L0 + L1 ||B||_*)

    If all radii are equal, this is unconstrained Scion.

    Args:
        learning_rate: eta, a common factor of all radii: float, schedule, or
            callable.
        radii: Dict from regular expressions on variable paths to radii, at
            least 0; the first that matches counts, 1 where none does.
        smoothness: Likewise, to pairs (L0, L1), at least 0 and not both 0:
            these variables' radii follow their gradient.
        beta_1: Decay of the momentum, in [0, 1).
        newton_schulz: How hidden matrices are orthogonalized.
        weight_decay: Decoupled, at eta; at least 0, or None as published.
        name: Name of the optimizer. Defaults to one that Keras numbers.
        **kwargs: Arguments of `LMOOptimizer`, e.g. `noise`, `nesterov`, and of
            `LayerwiseOptimizer`.

    Raises:
        ValueError: For a wrong argument, naming it, or a pattern that matches
            no variable.

    References:
        Riabinin et al. 2025, Gluon: Making Muon and Scion Great Again,
        arXiv 2505.13416, algorithm 1 and its adaptive radii. The authors fit
        L0 and L1 to an earlier run.
    """

    arguments = (*LMOOptimizer.arguments, "radii", "smoothness")

    def __init__(
        self,
        learning_rate: Any = 1e-3,
        *,
        radii: Mapping[str, float] | None = None,
        smoothness: Mapping[str, Sequence[float]] | None = None,
        beta_1: float = 0.95,
        newton_schulz: NewtonSchulz = NewtonSchulz(coefficients="jordan"),
        weight_decay: float | None = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        _check("radii", radii, "numbers of at least 0", _is_radius)
        _check(
            "smoothness",
            smoothness,
            "pairs (L0, L1) of numbers of at least 0, not both 0",
            _is_smoothness,
        )
        super().__init__(
            learning_rate,
            beta_1=beta_1,
            newton_schulz=newton_schulz,
            weight_decay=weight_decay,
            name=name,
            **kwargs,
        )
        self.radii = dict(radii or {})
        self.smoothness = {
            pattern: list(pair) for pattern, pair in (smoothness or {}).items()
        }

    def make_rules(self, hidden: Spectral) -> dict[str, Rule]:
        """The norms of Scion and Lanton; LMOs times the fixed radius or 1.

        Args:
            hidden: The spectral norm, by this optimizer's Newton-Schulz.
        """
        norms = {"hidden": hidden, "embedding": Sign(), "vector": RMS()}

        def scale(spec: VariableSpec) -> float:
            radius = _first(self.radii, spec.path)
            lmo_scale = norms[spec.role].lmo_scale(spec.d_in, spec.d_out)
            return lmo_scale * (1.0 if radius is None else radius)

        return {role: Rule(norm, scale) for role, norm in norms.items()}

    def make_direction(self, layout: VariableLayout) -> Direction:
        """The LMO, with radii that follow the gradient where that is wanted.

        Args:
            layout: The variables.

        Raises:
            ValueError: If a pattern matches no variable.
        """
        paths = [spec.path for spec in layout.specs]
        for name in ("radii", "smoothness"):
            for pattern in getattr(self, name):
                if not any(re.search(pattern, path) for path in paths):
                    raise ValueError(
                        f"`{name}` has a pattern that matches no variable "
                        f"path. Allowed: {paths}. Received: {pattern!r}"
                    )
        pairs = [_first(self.smoothness, p) or (np.nan, np.nan) for p in paths]
        smoothness = np.array(pairs, "float32").reshape(-1, 2)
        rules = self.rules_by_role()
        lmo_scale = np.array(
            [
                rules[s.role].norm.lmo_scale(s.d_in, s.d_out)
                for s in layout.specs
            ],
            "float32",
        )
        return AdaptiveRadius(
            smoothness=smoothness[layout.variable_of_matrix],
            lmo_scale=lmo_scale[layout.variable_of_matrix],
        )


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class AdaptiveRadius(Direction):
    """The LMO times a radius that follows the gradient.

    Args:
        smoothness: L0 and L1 of each matrix, `(matrices, 2)`; NaN where the
            radius is fixed.
        lmo_scale: Factor of the LMO of each matrix, `(matrices,)` float32.
    """

    smoothness: np.ndarray
    lmo_scale: np.ndarray

    def after(
        self,
        O: Tensor,
        M: Tensor,
        stack: Stack,
        matrices: np.ndarray,
        weights: Sequence[Any],
        state: State,
    ) -> tuple[Tensor, Changes]:
        """T times the `lmo` of M; see the base class."""
        smoothness = self.smoothness[matrices]
        if not np.isfinite(smoothness).any():
            return O, {}
        # <M, LMO(M)> = -||M||_*.
        dual = ops.sum(ops.cast(M, "float32") * O, axis=(-2, -1))
        dual = dual * ops.convert_to_tensor(self.lmo_scale[matrices])
        radius = _adaptive_radius(dual, smoothness)
        return backend.scale_(O, radius[:, None, None]), {}


def _adaptive_radius(dual: Tensor, smoothness: np.ndarray) -> Tensor:
    """||B||_* / (L0 + L1 ||B||_*), and 1 where L0 is NaN."""
    given = np.isfinite(smoothness[:, 0])
    L0, L1 = (
        ops.convert_to_tensor(np.where(given, column, 1.0).astype("float32"))
        for column in smoothness.T
    )
    below = L0 + L1 * dual
    radius = dual / backend.where(below > 0, below, 1.0)
    return backend.where(backend.constant(given), radius, 1.0)


def _first(table: Mapping[str, Any], path: str) -> Any:
    """The value of the first pattern that matches, or None."""
    return next(
        (value for key, value in table.items() if re.search(key, path)), None
    )


def _is_radius(value: Any) -> bool:
    return is_number(value, lambda x: x >= 0)


def _is_smoothness(value: Any) -> bool:
    return (
        isinstance(value, (list, tuple))
        and len(value) == 2
        and all(map(_is_radius, value))
        and sum(value) > 0
    )


def _check(name: str, table: Any, wanted: str, allows: Any) -> None:
    """ValueError unless None or a dict from patterns to what is wanted."""
    try:
        good = table is None or (
            isinstance(table, Mapping)
            and all(isinstance(key, str) and re.compile(key) for key in table)
            and all(allows(value) for value in table.values())
        )
    except (re.error, OverflowError, RecursionError):
        good = False
    if not good:
        raise ValueError(
            f"`{name}` must be None or a dict from regular expressions on "
            f"variable paths to {wanted}. Received: {name}={shown(table)}"
        )
