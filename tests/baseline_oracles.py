"""The compared optimizers in float64 NumPy, one layer after the other.

Each from its paper and published code, from nothing of this package but the
records of `oracle.py`: slow and obvious on purpose. Defaults are those of the
publications.
"""

import math

import numpy as np

from oracle import JORDAN
from oracle import newton_schulz


def orthogonal(matrix):
    """U V^T, as five steps of the quintic give it."""
    return newton_schulz(matrix, JORDAN, 5)


class Baseline:
    """One update rule per layer; layers without a gradient rest."""

    rests = True  # Keras' own optimizers also step by a gradient of zeros

    def __init__(self, layers, **options):
        self.layers = layers
        self.options = {**self.defaults, **options}
        for name, value in self.options.items():
            setattr(self, name, value)
        self.t = 0
        self.state = [{} for _ in layers]

    def step(self, gradients, weights, eta):
        """The new weights; None stands for no gradient."""
        self.t += 1
        moved = []
        for i, (g, x) in enumerate(zip(gradients, weights, strict=True)):
            x = np.array(x, "float64")
            if g is not None and (np.any(g) or not self.rests):
                x = self.move(i, self.layers[i], np.array(g, "float64"), x, eta)
            moved.append(x)
        return moved

    def buffer(self, i, name, x):
        return self.state[i].get(name, np.zeros_like(x))

    def ema(self, i, name, x, beta):
        new = beta * self.buffer(i, name, x) + (1 - beta) * x
        self.state[i][name] = new
        return new

    def adam(self, i, g, beta_1, beta_2, epsilon, before=False):
        m = self.ema(i, "m", g, beta_1)
        v = self.ema(i, "v", g**2, beta_2)
        root = math.sqrt(1 - beta_2**self.t)
        if before:
            return m / (np.sqrt(v) + epsilon) * root / (1 - beta_1**self.t)
        return (m / (1 - beta_1**self.t)) / (np.sqrt(v) / root + epsilon)


def by_matrix(layer, function, *tensors):
    """A function of each matrix, put back to where it came from."""
    found = np.zeros(layer.shape).ravel()
    for positions in layer.matrices():
        found[positions] = function(*(x.ravel()[positions] for x in tensors))
    return found.reshape(layer.shape)


class MuonOracle(Baseline):
    """Keller Jordan's, all hidden layers as matrices; AdamW elsewhere."""

    defaults = {
        "beta_1": 0.95,
        "nesterov": True,
        "adam_lr_ratio": 0.015,
        "adam_beta_1": 0.9,
        "adam_beta_2": 0.95,
        "epsilon": 1e-10,
        "weight_decay": 0.0,
    }
    before = False

    def move(self, i, layer, g, x, eta):
        if layer.role != "hidden":
            eta = eta * self.adam_lr_ratio
            u = self.adam(
                i,
                g,
                self.adam_beta_1,
                self.adam_beta_2,
                self.epsilon,
                self.before,
            )
            return x - eta * self.weight_decay * x - eta * u
        m = self.ema(i, "m", g, self.beta_1)
        if self.nesterov:
            m = (1 - self.beta_1) * g + self.beta_1 * m
        x = x - eta * self.weight_decay * x
        return x - eta * by_matrix(layer, self.update, m)

    def update(self, m):
        d_in, d_out = m.shape
        return math.sqrt(max(1, d_out / d_in)) * orthogonal(m)


class DMuonOracle(MuonOracle):
    """Moonlight's; with its heavy-ball momentum."""

    defaults = {
        **MuonOracle.defaults,
        "adam_lr_ratio": 1.0,
        "epsilon": 1e-8,
        "weight_decay": 0.1,
    }
    before = True

    def move(self, i, layer, g, x, eta):
        if layer.role != "hidden":
            return super().move(i, layer, g, x, eta)
        m = self.beta_1 * self.buffer(i, "m", g) + g
        self.state[i]["m"] = m
        u = g + self.beta_1 * m if self.nesterov else m
        x = x * (1 - eta * self.weight_decay)
        return x - eta * by_matrix(layer, self.update, u)

    def update(self, m):
        return 0.2 * math.sqrt(max(m.shape)) * orthogonal(m)


class AdaMuonOracle(MuonOracle):
    """Version 2: Newton-Schulz of signs, V not debiased."""

    defaults = {
        **MuonOracle.defaults,
        "adam_lr_ratio": 1.0,
        "epsilon": 1e-8,
        "weight_decay": 0.1,
    }

    def move(self, i, layer, g, x, eta):
        if layer.role != "hidden":
            decay = 0.0 if layer.role == "vector" else self.weight_decay
            u = self.adam(
                i, g, self.adam_beta_1, self.adam_beta_2, self.epsilon
            )
            return x - eta * decay * x - eta * u
        m = self.ema(i, "m", g, self.beta_1)
        m = (1 - self.beta_1) * g + self.beta_1 * m
        o = by_matrix(layer, lambda one: orthogonal(np.sign(one)), m)
        v = self.ema(i, "v", o**2, self.beta_1)
        p = o / (np.sqrt(v) + self.epsilon)
        x = x - eta * self.weight_decay * x
        return x - eta * by_matrix(
            layer,
            lambda one: 0.2 * math.sqrt(one.size) * one / np.linalg.norm(one),
            p,
        )


class NorMuonOracle(MuonOracle):
    """A running mean square of each output, and the norm restored."""

    defaults = {
        **MuonOracle.defaults,
        "adam_lr_ratio": 1.0,
        "beta_2": 0.95,
        "epsilon": 1e-8,
        "weight_decay": 0.1,
    }

    def move(self, i, layer, g, x, eta):
        if layer.role != "hidden":
            return super().move(i, layer, g, x, eta)
        m = self.ema(i, "m", g, self.beta_1)
        m = (1 - self.beta_1) * g + self.beta_1 * m
        o = by_matrix(layer, orthogonal, m)
        squares = by_matrix(
            layer, lambda one: 0 * one + np.mean(one**2, axis=0), o
        )
        v = self.ema(i, "v", squares, self.beta_2)
        x = x - eta * self.weight_decay * x
        return x - eta * by_matrix(
            layer, self.restored, o, o / (np.sqrt(v) + 1e-10)
        )

    def restored(self, o, p):
        norm = np.linalg.norm
        return 0.2 * math.sqrt(max(o.shape)) * norm(o) / norm(p) * p


class ScionOracle(Baseline):
    """Constrained and unconstrained."""

    defaults = {
        "beta_1": 0.9,
        "constrained": True,
        "hidden_scale": 50.0,
        "embedding_scale": 3000.0,
        "vector_scale": 10.0,
        "vector_norm": "rms",
    }

    def move(self, i, layer, g, x, eta):
        m = self.ema(i, "m", g, self.beta_1)
        rho = getattr(self, f"{layer.role}_scale")
        d = rho * by_matrix(layer, lambda one: self.lmo(layer, one), m)
        if self.constrained:
            x = (1 - eta) * x
        return x - eta * d

    def lmo(self, layer, m):
        """As published, to be subtracted."""
        d_in, d_out = m.shape
        if layer.role == "hidden":
            return math.sqrt(d_out / d_in) * orthogonal(m)
        if layer.role == "vector":
            if self.vector_norm == "sign":
                return np.sign(m)
            return m / np.sqrt(np.mean(m**2))
        return np.sign(m) / d_in


class LambOracle(Baseline):
    """Algorithm 2: weight decay inside the trust ratio."""

    rests = False
    defaults = {
        "beta_1": 0.9,
        "beta_2": 0.999,
        "epsilon": 1e-6,
        "weight_decay": 0.01,
    }

    def move(self, i, layer, g, x, eta):
        u = self.adam(i, g, self.beta_1, self.beta_2, self.epsilon)
        u = u + self.weight_decay * x
        above, below = np.linalg.norm(x), np.linalg.norm(u)
        return x - eta * (above / below if above and below else 1.0) * u


class MarsOracle(Baseline):
    """MARS-AdamW, approximate mode; vectors by AdamW."""

    rests = False
    defaults = {
        "gamma": 0.025,
        "beta_1": 0.95,
        "beta_2": 0.99,
        "epsilon": 1e-8,
        "optimize_1d": False,
        "adam_lr_ratio": 1.0,
        "adam_beta_1": 0.9,
        "adam_beta_2": 0.95,
        "adam_weight_decay": 0.1,
        "weight_decay": 0.0,
    }

    def move(self, i, layer, g, x, eta):
        if layer.role == "vector" and not self.optimize_1d:
            eta = eta * self.adam_lr_ratio
            u = self.adam(
                i, g, self.adam_beta_1, self.adam_beta_2, self.epsilon
            )
            return x - eta * (u + self.adam_weight_decay * x)
        factor = self.gamma * self.beta_1 / (1 - self.beta_1)
        c = g + factor * (g - self.buffer(i, "last", g))
        c = c / max(1.0, np.linalg.norm(c))
        self.state[i]["last"] = g
        u = self.adam(i, c, self.beta_1, self.beta_2, self.epsilon)
        return x - eta * (u + self.weight_decay * x)


class BlockwiseAdamWOracle(Baseline):
    """AdamW at r times the rate; `ratios` holds each layer's r."""

    rests = False
    defaults = {
        "ratios": None,
        "minimum_learning_rate": 0.0,
        "maximum_learning_rate": None,
        "warmup_steps": 0,
        "beta_1": 0.9,
        "beta_2": 0.95,
        "epsilon": 1e-8,
        "weight_decay": 0.1,
    }

    def move(self, i, layer, g, x, eta):
        r = self.ratios[i]
        low, high = self.minimum_learning_rate, self.maximum_learning_rate
        if high is None or self.t <= self.warmup_steps:
            rate = r * eta
        else:
            rate = low + (r * high - low) * (eta - low) / (high - low)
        u = self.adam(i, g, self.beta_1, self.beta_2, self.epsilon)
        return x - rate * self.weight_decay * x - rate * u
