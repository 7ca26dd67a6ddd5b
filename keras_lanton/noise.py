"""Lines 7 and 8 of Algorithm 1: the noise of each layer and its factor.

The noise is kept as sqrt(H), not H: H is the square of a gradient's norm and
leaves float32 where the gradient itself does not.
"""

from typing import Any

from keras import ops

Tensor = Any


def update_noise(noise: Tensor, d: Tensor, *, beta_2: float) -> Tensor:
    """H_t = b2 H_{t-1} + (1 - b2) d_t^2, as its root [Alg. 1, line 7].

    Args:
        noise: sqrt(H_{t-1}), `(layers,)`, float32.
        d: Dual norms of the noise samples, `(layers,)`, float32.
        beta_2: Decay of H, in [0, 1).

    Returns:
        sqrt(H_t), `(layers,)`, float32.
    """
    scale = ops.maximum(noise, d)
    unit = ops.where(scale > 0, scale, 1.0)
    H = beta_2 * (noise / unit) ** 2 + (1.0 - beta_2) * (d / unit) ** 2
    return scale * ops.sqrt(H)


def noise_factor(noise: Tensor, *, alpha: Tensor | float) -> Tensor:
    """a_t = alpha / sqrt(alpha^2 + H_t) [Alg. 1, line 8].

    Args:
        noise: sqrt(H_t), `(layers,)`, float32.
        alpha: In the units of the noise; a scalar, or `(layers,)`.

    Returns:
        a_t in (0, 1], `(layers,)`, float32.
    """
    scale = ops.maximum(noise, alpha)
    return (alpha / scale) / ops.sqrt(
        (alpha / scale) ** 2 + (noise / scale) ** 2
    )
