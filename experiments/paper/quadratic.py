"""The stochastic quadratic of theory.py, and one run of Lanton on it."""

import functools
import math

import keras
import numpy as np
from keras import ops

from keras_lanton import Lanton
from keras_lanton import NewtonSchulz
from keras_lanton import NoiseAdaptiveRate

ROWS, COLUMNS = 16, 24
RANK = min(ROWS, COLUMNS)
SHAPE = math.sqrt(COLUMNS / ROWS)  # of the dual norm: SHAPE times nuclear
CURVATURE = 1 / (RANK * SHAPE**2)  # whose smoothness is 1
RADIUS = 4.0  # RMS->RMS norm of X* - X_1
LOWEST = 0.9  # s_l / S_l
DIRECTIONS = 16


def isometries(count, rng):
    """`(count, ROWS, COLUMNS)`, all singular values 1."""
    U, _, V = np.linalg.svd(
        rng.standard_normal((count, ROWS, COLUMNS)), full_matrices=False
    )
    return U @ V


def dual(G):
    """||.||_* of matrices `(..., ROWS, COLUMNS)`."""
    return SHAPE * np.linalg.svd(G, compute_uv=False).sum(axis=-1)


# Noise directions, of dual norm 1.
UNITS = isometries(DIRECTIONS, np.random.default_rng(0)) / (SHAPE * RANK)


def draw_noise(S, rng):
    """One sample per layer, with dual norm in [LOWEST S_l, S_l] and mean 0."""
    sizes = S * rng.uniform(LOWEST, 1.0, len(S)) * rng.choice((-1, 1), len(S))
    return sizes[:, None, None] * UNITS[rng.integers(DIRECTIONS, size=len(S))]


@functools.cache
def mean_square():
    """M_l / S_l^2, by quadrature over sizes and all pairs of directions."""
    nodes, weights = np.polynomial.legendre.leggauss(4)
    sizes = LOWEST + (1 - LOWEST) * (nodes + 1) / 2
    total = 0.0
    for u, w in zip(sizes, weights / 2, strict=True):
        for v, x in zip(sizes, weights / 2, strict=True):
            for sign in (-1, 1):
                pairs = u * UNITS[:, None] - sign * v * UNITS[None]
                total += w * x * np.mean(dual(pairs) ** 2) / 2
    return total


def trajectory(S, steps, *, eta, beta_1, beta_2, alpha, seed, record=False):
    """Run `Lanton` on the problem, T steps from the seed's optimum.

    S is the largest noise of each layer, `(layers,)`; alpha is in units of
    the dual norm.

    Returns:
        A dict of arrays `(steps, layers)`: `"norms"`, dual norms of the true
        gradients before each step; with `record`, `"H"` and `"ratios"`.
    """
    rng = np.random.default_rng(seed)
    optimum = RADIUS * SHAPE * isometries(len(S), rng)
    with keras.name_scope("layers"):
        x = keras.Variable(np.zeros_like(optimum, "float32"), name="kernel")
    optimizer = Lanton.paper(
        eta,
        beta_1=beta_1,
        noise=NoiseAdaptiveRate(
            alpha,
            alpha_unit="absolute",
            group_reduction="max",
            beta_2=beta_2,
            interval=1,
            schedule="interval",
            reference="independent_gradient",
            estimator="svd",
        ),
        gradient_accumulation_steps=2,
        step_scale="operator",
        newton_schulz=NewtonSchulz(
            steps=8, coefficients="polar_express", dtype="float32"
        ),
        weight_decay=None,
    )
    optimizer.assign_role("hidden", [x], input_axes=(1,), output_axes=(2,))
    optimizer.build([x])
    gradients, H, ratios = [], [], []
    for _ in range(steps):
        gradient = CURVATURE * (ops.convert_to_numpy(x) - optimum)
        gradients.append(gradient)
        for _ in range(2):
            noisy = gradient + draw_noise(S, rng)
            optimizer.apply([ops.convert_to_tensor(noisy, "float32")], [x])
        if record:
            (report,) = optimizer.noise_report().values()
            H.append(np.float64(report["noise"]) ** 2)
            ratios.append(np.float64(report["ratio"]))
    found = {"norms": dual(np.array(gradients))}
    return {**found, "H": np.array(H), "ratios": np.array(ratios)}
