"""AdamW for the variables that an optimizer does not update by LMOs."""

import dataclasses
import math
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_lanton import backends
from keras_lanton.types import Tensor
from keras_lanton.validation import ABOVE_0
from keras_lanton.validation import AT_LEAST_0
from keras_lanton.validation import BASE_NUMBERS
from keras_lanton.validation import DECAY
from keras_lanton.validation import Numbers
from keras_lanton.validation import Part
from keras_lanton.validation import check_bool
from keras_lanton.validation import check_numbers
from keras_lanton.validation import shown

backend = backends.load()

ROLES = ("embedding", "vector")
NUMBERS: Numbers = {
    "lr_ratio": AT_LEAST_0,
    "beta_1": DECAY,
    "beta_2": DECAY,
    "epsilon": ABOVE_0,
    "weight_decay": BASE_NUMBERS["weight_decay"],
}


def debias(beta: float, t: Tensor) -> Tensor:
    """1 - beta^t, exact to rounding for beta near 1.

    Args:
        beta: Decay, in [0, 1).
        t: Number of the step, from 1.
    """
    if beta == 0.0:
        return ops.ones((), "float32")
    return -ops.expm1(ops.cast(t, "float32") * math.log(beta))


def debiasing(beta_1: float, beta_2: float, t: Tensor) -> tuple[Tensor, Tensor]:
    """1 - beta_1^t and sqrt(1 - beta_2^t), of m and of sqrt(v)."""
    return debias(beta_1, t), ops.sqrt(debias(beta_2, t))


def adam_direction(
    m: Tensor,
    root: Tensor,
    t: Tensor,
    *,
    beta_1: float,
    beta_2: float,
    epsilon: float,
) -> Tensor:
    """m^ / (sqrt(v^) + epsilon), where ^ divides by 1 - beta^t.

    Args:
        m: Mean of gradients, from 0.
        root: sqrt(v), v the mean of their squares, from 0.
        t: Number of the step, from 1.
        beta_1: Decay of m.
        beta_2: Decay of v.
        epsilon: Above 0.

    Returns:
        A tensor of the shape of m, float32.

    References:
        Kingma and Ba 2015, algorithm 1; Loshchilov and Hutter 2019.
    """
    (direction,) = backend.adam_directions(
        [ops.cast(m, "float32")],
        [ops.cast(root, "float32")],
        debiasing(beta_1, beta_2, t),
        epsilon=epsilon,
    )
    return direction


@keras.saving.register_keras_serializable(package="keras_lanton")
@dataclasses.dataclass(frozen=True, kw_only=True)
class AuxiliaryAdamW(Part):
    """AdamW for some roles; LMOs update the others.

        m <- b1 m + (1 - b1) g,   v <- b2 v + (1 - b2) g^2      from 0
        X <- (1 - eta' gamma) X - eta' m^ / (sqrt(v^) + epsilon)

    with eta' = eta `lr_ratio`. The optimizer keeps m in its momentum, and
    sqrt(v) in place of v: squares of large gradients would leave float32.

    Args:
        roles: Roles that AdamW updates: some of `"embedding"` and `"vector"`,
            at least one.
        lr_ratio: AdamW's learning rate over the base rate, at least 0.
        beta_1: Decay of m, in [0, 1).
        beta_2: Decay of v, in [0, 1).
        epsilon: Above 0.
        weight_decay: gamma, at least 0. Defaults to the optimizer's.
        epsilon_before_debiasing: Whether epsilon is added to sqrt(v), as in
            Keras and Moonlight, and not to sqrt(v^), as in PyTorch.

    Raises:
        ValueError: For a wrong argument, naming it, what is allowed and what
            was received.

    Examples:
        >>> Lanton(auxiliary_adamw=AuxiliaryAdamW(lr_ratio=0.5))

    References:
        Loshchilov and Hutter 2019, Decoupled Weight Decay Regularization.
    """

    roles: Sequence[str] = ("vector",)
    lr_ratio: float = 1.0
    beta_1: float = 0.9
    beta_2: float = 0.95
    epsilon: float = 1e-8
    weight_decay: float | None = None
    epsilon_before_debiasing: bool = False

    def __post_init__(self) -> None:
        _check_roles(self.roles)
        object.__setattr__(self, "roles", tuple(self.roles))
        check_numbers(NUMBERS, **{n: getattr(self, n) for n in NUMBERS})
        check_bool("epsilon_before_debiasing", self.epsilon_before_debiasing)

    def update_(
        self,
        X: Sequence[Tensor],
        G: Sequence[Tensor],
        m: Sequence[Tensor],
        roots: Sequence[Tensor],
        *,
        active: Sequence[Any],
        rates: Sequence[Any],
        decay_factors: Sequence[Any],
        debiasing: Sequence[Any],
        cautious: bool = False,
        casts: Sequence[Callable[[Tensor, Any], Tensor]] | None = None,
    ) -> tuple[list[Tensor], list[Tensor]]:
        """One step of AdamW, where X and the roots may be overwritten.

        Args:
            X: Weights, one per variable.
            G: Gradients, likewise.
            m: Their means after this step, not yet rounded to half precision.
            roots: sqrt(v), roots of the means of their squares, before this
                step.
            active: 1 where there is a gradient, else 0: scalars, or tensors
                for the entries.
            rates: eta', 0 without a gradient: likewise.
            decay_factors: Factors on the weights: likewise.
            debiasing: 1 - b1^t and sqrt(1 - b2^t): scalars.
            cautious: Whether entries that the step moves away from 0 do not
                decay.
            casts: Functions of new weights and their dtype, one per variable;
                None rounds to the nearest.

        Returns:
            The new X and the new roots.
        """
        dtypes = ["float32"] * len(roots)
        g, roots, m = (
            backend.cast_each(part, dtypes) for part in (G, roots, m)
        )
        c = [(1.0 - self.beta_2) * one for one in active]
        roots = backend.mean_roots_(roots, g, c)
        directions = backend.adam_directions(
            m,
            roots,
            debiasing,
            epsilon=self.epsilon,
            epsilon_before_debiasing=self.epsilon_before_debiasing,
        )
        steps = backend.scale_each_(directions, [-rate for rate in rates])
        X = backend.update_(
            X, steps, decay_factors, cautious=cautious, casts=casts
        )
        return list(X), list(roots)


def _check_roles(roles: Any) -> None:
    """ValueError unless a sequence of different roles that AdamW can update."""
    if (
        isinstance(roles, (str, bytes))
        or not isinstance(roles, Sequence)
        or not roles
        or not all(isinstance(r, str) and r in ROLES for r in roles)
        or len(set(roles)) < len(roles)
    ):
        raise ValueError(
            f"`roles` must be a sequence of one or two of {ROLES}; for none, "
            f"`auxiliary_adamw=None`. Received: roles={shown(roles)}"
        )
