"""Lines 7 to 9 of Algorithm 1: noise, noise factors and layer rates.

A layer of the paper is one matrix here. The noise is kept as sqrt(H), not H: H
is the square of a gradient's norm and leaves float32 where the gradient itself
does not. A matrix whose H is exactly 0 (nothing was measured yet) has ratio 1
and takes no part in its group's maximum or means: else it would slow down the
whole group.
"""

from collections.abc import Sequence

import numpy as np
from keras import ops

from keras_lanton.backends import backend
from keras_lanton.settings import NoiseAdaptiveRate
from keras_lanton.types import Tensor


def update_noise(noise: Tensor, d: Tensor, *, beta_2: float) -> Tensor:
    """H_t = b2 H_{t-1} + (1 - b2) d_t^2, as its root [Alg. 1, line 7].

    Args:
        noise: sqrt(H_{t-1}), `(matrices,)`, float32.
        d: Dual norms of the noise samples, `(matrices,)`, float32.
        beta_2: Decay of H, in [0, 1).

    Returns:
        sqrt(H_t), `(matrices,)`, float32.
    """
    return backend.hypot(beta_2**0.5 * noise, (1.0 - beta_2) ** 0.5 * d)


def noise_factor(noise: Tensor, *, alpha: Tensor | float) -> Tensor:
    """a_t = alpha / sqrt(alpha^2 + H_t) [Alg. 1, line 8].

    Args:
        noise: sqrt(H_t), `(matrices,)`, float32.
        alpha: Number in the units of the noise; a scalar, or `(matrices,)`.

    Returns:
        a_t in (0, 1], `(matrices,)`, float32.
    """
    return alpha / backend.hypot(noise, alpha)


def group_noise(noise: Tensor, *, groups: Sequence[Tensor]) -> Tensor:
    """Root of the mean of H over each matrix' group, the unit of alpha.

    Args:
        noise: sqrt(H_t), `(matrices,)`, float32.
        groups: One mask of its matrices for each group, `(matrices,)` bool.

    Returns:
        `(matrices,)`, float32; 1 in a group where nothing was measured.
    """
    result = ops.ones_like(noise)
    for member in groups:
        own = backend.where(member, noise, 0.0)
        top = ops.max(own)
        unit = backend.divisor(top)
        mean = _measured_mean((own / unit) ** 2, noise, member)
        rms = backend.where(top > 0, unit * ops.sqrt(mean), 1.0)
        result = backend.where(member, rms, result)
    return result


def layer_ratio(
    a: Tensor, noise: Tensor, *, groups: Sequence[Tensor], reduction: str
) -> Tensor:
    """sqrt(a_t^l) over its group's mean or maximum [Alg. 1, line 9].

    Args:
        a: Noise factors, `(matrices,)`, float32.
        noise: sqrt(H_t), `(matrices,)`, float32.
        groups: One mask of its matrices for each group, `(matrices,)` bool.
        reduction: `"mean"`: over the group's mean of sqrt(a_t^l), so that the
            group's mean ratio is 1; or `"max"`, as printed: sqrt(a_t^l /
            a_t^m), a_t^m the group's maximum of a_t^l.

    Returns:
        `(matrices,)`, float32: at most 1 with `"max"`.
    """
    root = ops.sqrt(a)
    result = ops.ones_like(root)
    for member in groups:
        if reduction == "max":
            measured = ops.logical_and(member, noise > 0)
            divisor = ops.max(backend.where(measured, root, 0.0))
        else:
            divisor = _measured_mean(root, noise, member)
        ratio = root / backend.divisor(divisor)
        result = backend.where(member, ratio, result)
    return backend.where(noise == 0, 1.0, result)


def rate_ratio(
    settings: NoiseAdaptiveRate,
    noise: Tensor,
    share: Tensor,
    groups: Sequence[np.ndarray],
) -> Tensor:
    """Rate of each matrix over eta_t [Alg. 1, lines 8 and 9].

    Args:
        settings: Of the noise.
        noise: sqrt(H) as the state has it, `(matrices,)`.
        share: `share_of_measurements` of each matrix, `(matrices,)`.
        groups: One mask of its matrices for each group, `(matrices,)` bool.

    Returns:
        `(matrices,)` float32.
    """
    alpha = settings.alpha
    if alpha is None:
        return ops.ones_like(noise)
    noise = comparable_noise(settings, noise, share)
    masks = [backend.constant(mask) for mask in groups]
    if settings.alpha_unit == "group_noise":
        alpha = alpha * group_noise(noise, groups=masks)
    a = noise_factor(noise, alpha=alpha)
    return layer_ratio(
        a, noise, groups=masks, reduction=settings.group_reduction
    )


def comparable_noise(
    settings: NoiseAdaptiveRate, noise: Tensor, share: Tensor
) -> Tensor:
    """sqrt(H) as if all matrices were measured equally often.

    H starts at zero and grows with every measurement. If one step measures
    all matrices, this is the same factor for all, as printed. Otherwise it
    would make matrices look quiet that are measured later.

    Args:
        settings: Of the noise.
        noise: sqrt(H) as the state has it, `(matrices,)`.
        share: `share_of_measurements` of each matrix, `(matrices,)`.
    """
    return noise if settings.schedule == "interval" else noise / share


def share_of_measurements(beta_2: float, measurements: Tensor) -> Tensor:
    """sqrt(1 - b2^n): what n measurements leave of sqrt(H); 1 before them.

    Args:
        beta_2: Decay of H.
        measurements: n of each matrix, `(matrices,)`.
    """
    n = ops.cast(measurements, "float32")
    left = 1.0 - backend.power(beta_2, n)
    return ops.sqrt(backend.where(n == 0, 1.0, left))


def momentum_variance(beta_1: float, nesterov: bool) -> float:
    """Variance of the momentum's noise over that of one gradient.

    The momentum is B = (1 - b1) sum of b1^k G_{t-k}, or b1 B + (1 - b1) G_t,
    after many steps of independent noise.

    Args:
        beta_1: Decay of the momentum, in [0, 1).
        nesterov: Whether it is b1 B + (1 - b1) G_t.
    """
    b = beta_1
    variance = (1.0 - b) / (1.0 + b)
    if not nesterov:
        return variance
    # The weight of G_t in b1 B is b1 (1 - b1); it gets 1 - b1 more.
    return b**2 * variance + (1.0 - b) ** 2 * (1.0 + 2.0 * b)


def sample_variance(reference: str, beta_1: float) -> float:
    """Variance of a noise sample D_t over that of the noise of G_t.

    Args:
        reference: As in `NoiseAdaptiveRate`.
        beta_1: Decay of the momentum, in [0, 1).
    """
    return {
        "previous_gradient": 2.0,
        # Two means, each of half of the micro-batches.
        "independent_gradient": 4.0,
        "momentum": 1.0 + momentum_variance(beta_1, False),
    }[reference]


def _measured_mean(x: Tensor, noise: Tensor, member: Tensor) -> Tensor:
    measured = ops.logical_and(member, noise > 0)
    count = ops.sum(ops.cast(measured, "float32"))
    total = ops.sum(backend.where(measured, x, 0.0))
    return total / backend.maximum(count, 1.0)
