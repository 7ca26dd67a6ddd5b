"""AdamW, for the variables that are not updated by LMOs."""

import math
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_lanton.backends import backend
from keras_lanton.settings import AuxiliaryAdamW
from keras_lanton.types import Tensor


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


def adamw_(
    settings: AuxiliaryAdamW,
    X: Sequence[Tensor],
    G: Sequence[Tensor],
    m: Sequence[Tensor],
    roots: Sequence[Tensor],
    *,
    active: Sequence[Any],
    rates: Sequence[Any],
    decay_factors: Sequence[Any],
    debiasing: Sequence[Any],
    casts: Sequence[Callable[[Tensor, Any], Tensor]] | None = None,
) -> tuple[list[Tensor], list[Tensor]]:
    """One step of AdamW, where X and the roots may be overwritten.

    Args:
        settings: Of AdamW.
        X: Weights, one per variable.
        G: Gradients, likewise.
        m: Their means after this step.
        roots: sqrt(v), roots of the means of their squares, before this step.
        active: 1 where there is a gradient, else 0: scalars, or tensors for
            the entries.
        rates: The rate eta', 0 without a gradient: likewise.
        decay_factors: Factors on the weights: likewise.
        debiasing: 1 - b1^t and sqrt(1 - b2^t): scalars.
        casts: Functions of new weights and their dtype, one per variable;
            None rounds to the nearest.

    Returns:
        The new X and the new roots.

    References:
        Kingma and Ba 2015, algorithm 1; Loshchilov and Hutter 2019.
    """
    dtypes = ["float32"] * len(roots)
    g, roots, m = (backend.cast_each(part, dtypes) for part in (G, roots, m))
    weights = [(1.0 - settings.beta_2) * one for one in active]
    roots = backend.mean_roots_(roots, g, weights)
    directions = backend.adam_directions(
        m,
        roots,
        debiasing,
        epsilon=settings.epsilon,
        epsilon_before_debiasing=settings.epsilon_before_debiasing,
    )
    steps = backend.scale_each_(directions, [-rate for rate in rates])
    X = backend.update_(X, steps, decay_factors, casts=casts)
    return list(X), list(roots)
