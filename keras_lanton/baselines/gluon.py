"""Gluon: LMO updates with a radius per variable."""

import re
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_lanton.backends import backend
from keras_lanton.core.layout import VariableLayout
from keras_lanton.core.norms import RMS
from keras_lanton.core.norms import Rule
from keras_lanton.core.norms import Sign
from keras_lanton.core.norms import Spectral
from keras_lanton.core.step import AfterLMO
from keras_lanton.core.step import Changes
from keras_lanton.optimizer.lmo import LMOOptimizer
from keras_lanton.optimizer.state import Buffer
from keras_lanton.roles.spec import VariableSpec
from keras_lanton.settings import NewtonSchulz
from keras_lanton.types import Tensor
from keras_lanton.validation import is_number
from keras_lanton.validation import shown


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

    def lay_out_work(
        self, layout: VariableLayout, variables: Sequence[Any]
    ) -> dict[str, Buffer | list[Buffer]]:
        """The state of the base class; fixes L0 and L1 of each matrix.

        Args:
            layout: The variables.
            variables: The updated variables.

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
        rules = self.rules_by_role()
        scales = [
            rules[s.role].norm.lmo_scale(s.d_in, s.d_out) for s in layout.specs
        ]
        # L0, L1 and the factor of the LMO; NaN where the radius is fixed.
        table = np.column_stack([np.reshape(pairs, (-1, 2)), scales])
        self._smoothness = table[layout.variable_of_matrix].astype("float32")
        return super().lay_out_work(layout, variables)

    def after_lmo(self, found: AfterLMO) -> tuple[Tensor, Changes]:
        """T times the `lmo` of M; see the base class."""
        O, M = ops.cast(found.O, "float32"), found.M
        L0, L1, lmo_scale = self._smoothness[found.work.matrices].T
        follows = np.isfinite(L0)
        if not follows.any():
            return O, {}
        # <M, LMO(M)> = -||M||_*.
        dual = ops.sum(ops.cast(M, "float32") * O, axis=(-2, -1))
        dual = dual * ops.convert_to_tensor(lmo_scale)
        L0, L1 = (np.where(follows, x, np.float32(1.0)) for x in (L0, L1))
        below = ops.convert_to_tensor(L0) + ops.convert_to_tensor(L1) * dual
        radius = dual / backend.divisor(below)
        radius = backend.where(ops.convert_to_tensor(follows), radius, 1.0)
        return backend.scale_(O, radius[:, None, None]), {}


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
