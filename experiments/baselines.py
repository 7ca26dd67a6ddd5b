"""Optimizers of the paper's comparison that have no LMO, on `keras.ops` alone.

They are plain Keras optimizers. Weight decay is theirs, not Keras': each
publication applies it in another place.
"""

import keras
from keras import ops

from keras_lanton import Lanton
from keras_lanton.roles.block_kinds import BLOCKS
from keras_lanton.roles.block_kinds import block_of

# The published ratios of BW-AdamW; position embeddings are a group of their
# own without one. The head's is the one that the LANTON paper gives it.
MULTIPLIERS = {
    "norm": 1.0,
    "position": 1.0,
    "vo": 4.0,
    "mlp": 6.0,
    "head": 6.0,
    "qk": 8.0,
    "embedding": 10.0,
}


class Adam(keras.optimizers.Optimizer):
    """The moments that all three keep; subclasses write `update_step`.

        m <- b1 m + (1 - b1) g,   v <- b2 v + (1 - b2) g^2      from 0
        u = m^ / (sqrt(v^) + epsilon)

    Args:
        learning_rate: Float, schedule, or callable without arguments.
        beta_1: Decay of the mean of gradients, in [0, 1).
        beta_2: Decay of the mean of their squares, in [0, 1).
        epsilon: Above 0.
        weight_decay: At least 0, or None.
        **kwargs: Arguments of `keras.optimizers.Optimizer`.
    """

    def __init__(
        self, learning_rate, *, beta_1, beta_2, epsilon, weight_decay, **kwargs
    ):
        super().__init__(learning_rate, **kwargs)
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        self.decay = weight_decay or 0.0

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        self.momentums, self.velocities = self.add_optimizer_variables(
            variables, ["momentum", "velocity"]
        )

    def direction(self, gradient, variable, betas=None):
        """The u of a variable, once its gradient is in the moments."""
        beta_1, beta_2 = betas or (self.beta_1, self.beta_2)
        i = self._get_variable_index(variable)
        m, v = self.momentums[i], self.velocities[i]
        square = ops.square(gradient)
        self.assign_add(m, ops.multiply(ops.subtract(gradient, m), 1 - beta_1))
        self.assign_add(v, ops.multiply(ops.subtract(square, v), 1 - beta_2))
        # In float32: bfloat16 has no beta_2 below 1.
        t = ops.cast(self.iterations + 1, "float32")
        c_1 = ops.cast(1 - ops.power(beta_1, t), variable.dtype)
        c_2 = ops.cast(1 - ops.power(beta_2, t), variable.dtype)
        root = ops.sqrt(ops.divide(v, c_2))
        return ops.divide(ops.divide(m, c_1), ops.add(root, self.epsilon))

    def move(self, variable, direction, rate):
        """X <- X - rate u."""
        rate = ops.cast(rate, variable.dtype)
        self.assign_sub(variable, ops.multiply(rate, direction))

    def decayed(self, direction, variable, gamma):
        """U + gamma X, or u where `exclude_from_weight_decay` says so."""
        if not self._use_weight_decay(variable):
            return direction
        return ops.add(direction, ops.multiply(variable, gamma))

    def get_config(self):
        return {
            **super().get_config(),
            "beta_1": self.beta_1,
            "beta_2": self.beta_2,
            "epsilon": self.epsilon,
            "weight_decay": self.decay,
        }


def norm(x):
    """The Frobenius norm, of any number of axes."""
    return ops.sqrt(ops.sum(ops.square(x)))


@keras.saving.register_keras_serializable(package="experiments")
class Lamb(Adam):
    """LAMB: Adam's direction, scaled to each variable's weights.

        u = m^ / (sqrt(v^) + epsilon) + gamma X
        X <- X - eta ||X|| / ||u|| u        (X - eta u if either is zero)

    `keras.optimizers.Lamb` decays outside of the ratio, which is another
    algorithm.

    Args:
        learning_rate: Float, schedule, or callable without arguments.
        **kwargs: Arguments of `Adam`.

    References:
        You et al. 2020, Large Batch Optimization for Deep Learning,
        algorithm 2, with phi the identity.
    """

    def __init__(self, learning_rate=1e-3, **kwargs):
        defaults = {"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-6}
        defaults["weight_decay"] = 0.01
        super().__init__(learning_rate, **{**defaults, **kwargs})

    def update_step(self, gradient, variable, learning_rate):
        u = self.direction(gradient, variable)
        u = self.decayed(u, variable, self.decay)
        above, below = norm(variable), norm(u)
        usable = ops.logical_and(above > 0, below > 0)
        # The inner `where`: 0 / 0 would be NaN.
        ratio = ops.divide(above, ops.where(below > 0, below, 1.0))
        self.move(variable, u, learning_rate * ops.where(usable, ratio, 1.0))


@keras.saving.register_keras_serializable(package="experiments")
class Mars(Adam):
    """MARS-AdamW: AdamW on gradients corrected by the previous ones.

        c_t = g_t + gamma b1 / (1 - b1) (g_t - g_{t-1}),   g_0 = 0
        c_t <- c_t / max(1, ||c_t||)             per variable
        m, v: moving means of c_t and c_t^2
        X <- X - eta (decay X + m^ / (sqrt(v^) + epsilon))

    It takes one gradient per step: the approximate mode of the paper. Plain
    AdamW updates vectors.

    Args:
        learning_rate: Float, schedule, or callable without arguments.
        gamma: Strength of the correction, at least 0; 0 is AdamW.
        optimize_1d: Whether vectors are treated like matrices.
        adam_lr_ratio: Rate of the vectors over the rate of the matrices.
        adam_beta_1: The vectors' beta_1.
        adam_beta_2: The vectors' beta_2.
        adam_weight_decay: The vectors' decay.
        roles: Records from the config of a `Lanton` that say which variables
            are vectors. None: read from layers and paths.
        **kwargs: Arguments of `Adam`; decay is that of the matrices.

    References:
        Yuan et al. 2024, MARS: Unleashing the Power of Variance Reduction;
        its code, github.com/AGI-Arena/MARS, MARS/optimizers/mars.py, which
        treats tensors of exactly two axes as matrices: here these are all of
        role hidden or embedding.
    """

    def __init__(
        self,
        learning_rate=3e-3,
        *,
        gamma=0.025,
        optimize_1d=False,
        adam_lr_ratio=1.0,
        adam_beta_1=0.9,
        adam_beta_2=0.95,
        adam_weight_decay=0.1,
        roles=None,
        **kwargs,
    ):
        defaults = {
            "beta_1": 0.95,
            "beta_2": 0.99,
            "epsilon": 1e-8,
            "weight_decay": None,
        }
        super().__init__(learning_rate, **{**defaults, **kwargs})
        self.own = {
            "gamma": gamma,
            "optimize_1d": optimize_1d,
            "adam_lr_ratio": adam_lr_ratio,
            "adam_beta_1": adam_beta_1,
            "adam_beta_2": adam_beta_2,
            "adam_weight_decay": adam_weight_decay,
            "roles": roles,
        }

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        specs = Lanton(roles=self.own["roles"]).decide_specs(variables)
        matrix = [spec.role != "vector" for spec in specs]
        self.corrects = [self.own["optimize_1d"] or one for one in matrix]
        self.last = [
            self.add_variable_from_reference(v, "last_gradient")
            if one
            else None
            for v, one in zip(variables, self.corrects, strict=True)
        ]

    def update_step(self, gradient, variable, learning_rate):
        i, own = self._get_variable_index(variable), self.own
        if self.corrects[i]:
            c = self.corrected(gradient, variable, self.last[i])
            u = self.decayed(self.direction(c, variable), variable, self.decay)
            self.move(variable, u, learning_rate)
            return
        betas = (own["adam_beta_1"], own["adam_beta_2"])
        u = self.direction(gradient, variable, betas)
        u = self.decayed(u, variable, own["adam_weight_decay"])
        self.move(variable, u, learning_rate * own["adam_lr_ratio"])

    def corrected(self, gradient, variable, last):
        """c_t, of norm 1 at most; it keeps the gradient for the next step."""
        # TensorFlow's gradient of a table holds some of its rows.
        zeros = ops.zeros(variable.shape, variable.dtype)
        g = ops.add(gradient, zeros)
        factor = self.own["gamma"] * self.beta_1 / (1 - self.beta_1)
        c = ops.add(g, ops.multiply(ops.subtract(g, last), factor))
        self.assign(last, g)
        return ops.divide(c, ops.maximum(norm(c), 1.0))

    def get_config(self):
        return {**super().get_config(), **self.own}


@keras.saving.register_keras_serializable(package="experiments")
class BlockwiseAdamW(Adam):
    """BW-AdamW: AdamW whose rate is r times the base rate, by kind of block.

    All blocks decay to one common minimum, so the ratios shrink to 1:

        eta_r = r eta                                       in the warm-up
        eta_r = eta_min + (r eta_max - eta_min) s           after it,
        s = (eta - eta_min) / (eta_max - eta_min)

    Weight decay is decoupled, at the block's rate, on every variable.

    Args:
        learning_rate: Base rate eta: float, schedule, or callable.
        multipliers: r by kind of block (`roles.block_kinds.BLOCKS`), each
            above 0; other kinds have the published ratio.
        minimum_learning_rate: eta_min, at least 0.
        maximum_learning_rate: eta_max, above eta_min: the schedule's highest
            rate. Needed where eta_min is not 0.
        warmup_steps: Steps at the start in which the ratios are constant.
        roles: As in `Mars`.
        **kwargs: Arguments of `Adam`.

    Raises:
        ValueError: For a wrong argument, naming it.

    References:
        Wang et al. 2025, The Sharpness Disparity Principle in Transformers
        for Accelerating Language Model Pre-Training; its code,
        github.com/Wongboo/BlockwiseLearningRate.
    """

    def __init__(
        self,
        learning_rate=6e-4,
        *,
        multipliers=None,
        minimum_learning_rate=0.0,
        maximum_learning_rate=None,
        warmup_steps=0,
        roles=None,
        **kwargs,
    ):
        check_multipliers(multipliers)
        low, high = minimum_learning_rate, maximum_learning_rate
        # The ratios shrink between the two.
        if (high is None and low > 0) or (high is not None and high <= low):
            raise ValueError(
                "`maximum_learning_rate` must be above "
                f"`minimum_learning_rate`={low}. "
                f"Received: maximum_learning_rate={high}"
            )
        defaults = {
            "beta_1": 0.9,
            "beta_2": 0.95,
            "epsilon": 1e-8,
            "weight_decay": 0.1,
        }
        super().__init__(learning_rate, **{**defaults, **kwargs})
        self.own = {
            "multipliers": {**MULTIPLIERS, **(multipliers or {})},
            "minimum_learning_rate": low,
            "maximum_learning_rate": high,
            "warmup_steps": warmup_steps,
            "roles": roles,
        }

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        specs = Lanton(roles=self.own["roles"]).decide_specs(variables)
        factors = self.own["multipliers"]
        self.factors = [factors[block_of(spec)] for spec in specs]

    def update_step(self, gradient, variable, learning_rate):
        r = self.factors[self._get_variable_index(variable)]
        u = self.direction(gradient, variable)
        u = self.decayed(u, variable, self.decay)
        self.move(variable, u, self.rate(r, learning_rate))

    def rate(self, r, eta):
        """eta_r, of one block."""
        low = self.own["minimum_learning_rate"]
        high = self.own["maximum_learning_rate"]
        if high is None:
            return r * eta
        late = low + (r * high - low) * (eta - low) / (high - low)
        warms_up = self.iterations < self.own["warmup_steps"]
        return ops.where(warms_up, r * eta, late)

    def get_config(self):
        return {**super().get_config(), **self.own}


def check_multipliers(multipliers):
    """ValueError unless they are numbers above 0, by kind of block."""
    given = multipliers or {}
    if set(given) - set(BLOCKS) or any(r <= 0 for r in given.values()):
        raise ValueError(
            f"`multipliers` must have keys of {BLOCKS} and values above 0. "
            f"Received: multipliers={multipliers}"
        )
