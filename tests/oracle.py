"""Algorithm 1 of LANTON in float64 NumPy, matrix by matrix.

Written from the paper (arXiv 2510.14009), AdamW from Loshchilov and Hutter
(arXiv 1711.05101, algorithm 2), and from nothing else: it imports nothing of
the package it judges, has no batching, no fast path and no state that is not a
plain array. Slow and obvious on purpose.
"""

import dataclasses
import math

import ml_dtypes
import numpy as np

# Rows (a, b, c) of X <- a X + b (X X^T) X + c (X X^T)^2 X, for X of Frobenius
# norm 1. The last row repeats when there are more steps than rows.
JORDAN = [(3.4445, -4.7750, 2.0315)]
YOU = [
    (4.0848, -6.8946, 2.9270),
    (3.9505, -6.3029, 2.6377),
    (3.7418, -5.5913, 2.3037),
    (2.8769, -3.1427, 1.2046),
    (2.8366, -3.0525, 1.2012),
]
_POLAR_EXPRESS = [
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
]
_SAFETY = 1.05
POLAR_EXPRESS = [
    (a / _SAFETY, b / _SAFETY**3, c / _SAFETY**5) for a, b, c in _POLAR_EXPRESS
] + [
    # Beyond its five rows: the plain quintic, which maps 1 to 1.
    (1.875, -1.25, 0.375)
]
COEFFICIENTS = {
    "jordan": JORDAN,
    "you": YOU,
    "polar_express": POLAR_EXPRESS,
    "cubic": [
        (3.3656576, -3.3420992, 0.0),
        (2.5744352, -1.4957376, 0.0),
        (2.5368962, -1.4312570, 0.0),
        (2.4418906, -1.2764040, 0.0),
        (2.2230472, -0.9630650, 0.0),
        (1.5, -0.5, 0.0),
    ],
}


@dataclasses.dataclass(frozen=True)
class Layer:
    """One variable: its role, and which axes make its matrices."""

    role: str
    shape: tuple
    batch_axes: tuple = ()
    input_axes: tuple = ()
    output_axes: tuple = ()
    blocks: int = 1
    decay: bool = True

    def matrices(self):
        """Flat positions of every matrix's entries, each (d_in, d_out).

        The matrices come in the order of the batch axes, and within one of
        them in the order of the blocks of the last output axis.
        """
        positions = np.arange(math.prod(self.shape)).reshape(self.shape)
        if self.role == "vector":
            return [positions.reshape(1, -1)]
        found = []
        for batch in np.ndindex(*[self.shape[a] for a in self.batch_axes]):
            for block in range(self.blocks):
                part = positions
                if self.blocks > 1:
                    part = np.split(
                        part, self.blocks, axis=self.output_axes[-1]
                    )[block]
                part = np.transpose(
                    part, self.batch_axes + self.input_axes + self.output_axes
                )[batch]
                d_in = math.prod(part.shape[: len(self.input_axes)])
                found.append(part.reshape(d_in, -1))
        return found


def newton_schulz(matrix, rows, steps):
    norm = np.linalg.norm(matrix)
    if norm == 0.0:
        return np.zeros_like(matrix)
    x = matrix / norm
    for step in range(steps):
        a, b, c = rows[min(step, len(rows) - 1)]
        gram = x @ x.T
        x = a * x + b * gram @ x + c * gram @ gram @ x
    return x


# Of the momentum's mean square beside the variances of rows and columns.
SIGNAL_WEIGHT = 0.1


def exact_polar(matrix):
    u, s, vt = np.linalg.svd(matrix, full_matrices=False)
    kept = s > s[0] * 1e-12 if s[0] > 0.0 else s > 0.0
    return u[:, kept] @ vt[kept]


class Oracle:
    """Algorithm 1.

    `step` takes the gradients of all layers (`None`: no gradient), their
    weights and the base learning rate, and returns the new weights. With
    `noise_reference="independent_gradient"` it takes one such list of
    gradients for each micro-batch.

    `ns_coefficients` is a name, a list of rows, or `"exact"` for the polar
    factor itself, through an SVD. `noise_estimator="auto"` is an SVD too:
    it is exact for matrices as small as those of the tests. In units of the
    signal it is the Frobenius norm, times the root of the short side.

    `noise_schedule="staggered"` needs `turns`: for each layer an array with
    the residue of the steps, counted from the first that can measure and
    modulo the interval, on which each of its matrices is measured.

    Layers of the roles in `adamw_roles` move by AdamW alone and have no noise.
    Its rate is `adam_lr_ratio` times the base rate, and so is the factor of
    its decay; it counts the applied steps.

    `momentum_dtype` is what the momentum of any layer is rounded to once a
    step has used it.
    """

    def __init__(
        self,
        layers,
        beta_1=0.95,
        beta_2=0.9,
        alpha=0.3,
        within_matrices=False,
        alpha_unit="group_noise",
        group_reduction="max",
        noise_interval=10,
        noise_schedule="staggered",
        noise_reference="previous_gradient",
        noise_estimator="auto",
        hidden_scale=0.2,
        embedding_scale=300.0,
        narrow=64,
        vector_scale=1.0,
        vector_norm="rms",
        step_scale="rms_matched",
        nesterov=False,
        momentum_warmup=False,
        ns_steps=5,
        ns_coefficients="jordan",
        nonfinite="skip",
        weight_decay=0.1,
        adamw_roles=(),
        adam_lr_ratio=1.0,
        adam_beta_1=0.9,
        adam_beta_2=0.95,
        epsilon=1e-8,
        momentum_dtype=None,
        turns=None,
    ):
        self.layers = layers
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.alpha = alpha
        self.within_matrices = within_matrices
        self.alpha_unit = alpha_unit
        self.group_reduction = group_reduction
        self.noise_interval = noise_interval
        self.noise_schedule = noise_schedule
        self.turns = turns or [np.zeros(len(x.matrices())) for x in layers]
        self.noise_reference = noise_reference
        self.noise_estimator = noise_estimator
        self.hidden_scale = hidden_scale
        self.embedding_scale = embedding_scale
        self.narrow = narrow
        self.vector_scale = vector_scale
        self.vector_norm = vector_norm
        self.step_scale = step_scale
        self.nesterov = nesterov
        self.momentum_warmup = momentum_warmup
        self.ns_steps = ns_steps
        self.ns_coefficients = ns_coefficients
        self.nonfinite = nonfinite
        self.weight_decay = weight_decay or 0.0
        self.adamw_roles = tuple(adamw_roles)
        self.adam_lr_ratio = adam_lr_ratio
        self.adam_beta_1 = adam_beta_1
        self.adam_beta_2 = adam_beta_2
        self.epsilon = epsilon
        self.momentum_dtype = momentum_dtype

        self.t = 0  # applied steps
        self.skipped_steps = 0
        self.learning_rate = 0.0
        # B, and G of the immediately preceding step: None until there is one.
        self.momentum = [None for _ in layers]
        self.previous = [None for _ in layers]
        self.second_moment = [np.zeros(one.shape) for one in layers]
        # H and the ratio of line 9, one for each matrix.
        self.noise = [np.zeros(len(one.matrices())) for one in layers]
        self.ratios = [np.ones(len(one.matrices())) for one in layers]
        self.counts = [np.zeros(len(one.matrices())) for one in layers]
        # Mean squares of the samples' rows and of their columns.
        self.rows = [[0.0 for _ in one.matrices()] for one in layers]
        self.columns = [[0.0 for _ in one.matrices()] for one in layers]

    def step(self, gradients, weights, learning_rate):
        weights = [np.array(w, dtype=np.float64) for w in weights]
        self.learning_rate = float(learning_rate)
        if self.noise_reference == "independent_gradient":
            micro_batches = [_as_float64(one) for one in gradients]
            gradients = _mean(micro_batches)
            differences = _subtract(
                _mean(micro_batches[0::2]), _mean(micro_batches[1::2])
            )
        else:
            gradients = _as_float64(gradients)
            differences = None
        if self.nonfinite == "skip" and not all(
            np.isfinite(g).all() for g in gradients if g is not None
        ):
            self.skipped_steps += 1
            return weights

        self.t += 1
        active = [g is not None and np.any(g != 0.0) for g in gradients]

        # Line 7 (before line 5: the samples need B_{t-1} and G_{t-1}).
        for index, layer in enumerate(self.layers):
            if active[index] and layer.role not in self.adamw_roles:
                self._measure(index, gradients[index], differences)
                if layer.role == "embedding":
                    self._measure_lines(
                        index,
                        gradients[index],
                        self.beta_2 ** (1.0 / self.noise_interval),
                    )

        # Line 5.
        c = 1.0 - self.beta_1
        if self.momentum_warmup:
            c = max(c, min(0.1, 16.0 / self.t))
        for index, gradient in enumerate(gradients):
            if not active[index]:
                self.previous[index] = None
                continue
            if self.layers[index].role in self.adamw_roles:
                continue
            if self.momentum[index] is None:
                self.momentum[index] = gradient
            last = self.momentum[index]
            self.momentum[index] = (1.0 - c) * last + c * gradient
            self.previous[index] = gradient

        # Lines 8 and 9.
        self._set_ratios()

        # Lines 6 and 10.
        for index, layer in enumerate(self.layers):
            if not active[index]:
                continue
            if layer.role in self.adamw_roles:
                weights[index] = self._adamw(
                    index, gradients[index], weights[index]
                )
                continue
            m = self.momentum[index]
            if self.nesterov:
                m = (1.0 - c) * m + c * gradients[index]
            x = weights[index].ravel()
            if layer.decay:
                x = x - self.learning_rate * self.weight_decay * x
            for number, positions in enumerate(layer.matrices()):
                rate = self.learning_rate * self.ratios[index][number]
                x[positions] += rate * self._scaled_lmo(
                    layer,
                    m.ravel()[positions],
                    self._entry_variance(index, number),
                )
            weights[index] = x.reshape(layer.shape)
        if self.momentum_dtype is not None:
            self.momentum = [
                None if m is None else _rounded(m, self.momentum_dtype)
                for m in self.momentum
            ]
        return weights

    def _adamw(self, index, gradient, weights):
        m, v = self.momentum[index], self.second_moment[index]
        m = np.zeros_like(gradient) if m is None else m
        m = self.adam_beta_1 * m + (1.0 - self.adam_beta_1) * gradient
        v = self.adam_beta_2 * v + (1.0 - self.adam_beta_2) * gradient**2
        self.momentum[index], self.second_moment[index] = m, v
        m = m / (1.0 - self.adam_beta_1**self.t)
        v = v / (1.0 - self.adam_beta_2**self.t)
        step = m / (np.sqrt(v) + self.epsilon)
        if self.layers[index].decay:
            step = step + self.weight_decay * weights
        return weights - self.learning_rate * self.adam_lr_ratio * step

    def report(self):
        """What `noise_report` gives, as a list in the order of the layers."""
        return [
            {
                "noise": np.sqrt(self._corrected(index)),
                "ratio": ratio.copy(),
                "learning_rate": self.learning_rate * ratio,
            }
            for index, ratio in enumerate(self.ratios)
        ]

    def _measures(self, turn):
        independent = self.noise_reference == "independent_gradient"
        steps = self.t - (1 if independent else 2)
        if self.noise_schedule == "interval":
            return steps >= 0 and steps % self.noise_interval == 0
        return steps % self.noise_interval == turn

    def _corrected(self, index):
        """H of a layer's matrices; staggered, without its start at zero."""
        h, n = self.noise[index], self.counts[index]
        if self.noise_schedule == "interval":
            return h
        return np.where(n > 0, h / (1.0 - self.beta_2 ** np.maximum(n, 1)), h)

    def _measure(self, index, gradient, differences):
        if self.noise_reference == "independent_gradient":
            sample = differences[index]
        elif self.noise_reference == "momentum":
            if self.momentum[index] is None:  # B_0 = G_1
                return
            sample = gradient - self.momentum[index]
        else:
            if self.previous[index] is None:
                return
            sample = gradient - self.previous[index]
        if self.alpha_unit == "signal" and self.momentum[index] is None:
            return
        layer = self.layers[index]
        for number, positions in enumerate(layer.matrices()):
            if not self._measures(self.turns[index][number]):
                continue
            self.counts[index][number] += 1
            d = self._dual_norm(layer, sample.ravel()[positions])
            if self.alpha_unit == "signal":
                last = self.momentum[index].ravel()[positions]
                d = d / self._dual_norm(layer, last)
            self.noise[index][number] = (
                self.beta_2 * self.noise[index][number]
                + (1.0 - self.beta_2) * d**2
            )
            if layer.role != "embedding":
                self._measure_lines(index, sample, self.beta_2, number)

    def _measure_lines(self, index, sample, decay, only=None):
        """Mean squares of rows and columns, of one matrix or of all."""
        for number, positions in enumerate(self.layers[index].matrices()):
            if only not in (None, number):
                continue
            squares = sample.ravel()[positions] ** 2
            for means, axis in ((self.rows, 1), (self.columns, 0)):
                means[index][number] = decay * means[index][number] + (
                    1.0 - decay
                ) * squares.mean(axis=axis)

    def _entry_variance(self, index, number):
        """V of a matrix' entries, in units of one gradient; None if unknown."""
        n = self.counts[index][number]
        rows, columns = self.rows[index][number], self.columns[index][number]
        if not self.within_matrices:
            return None
        if self.layers[index].role == "embedding":
            decay = self.beta_2 ** (1.0 / self.noise_interval)
            scale = 1.0 - decay**self.t
            return np.outer(rows, columns) / np.mean(rows) / scale
        if n == 0:
            return None
        b = self.beta_1
        sample = {
            "previous_gradient": 2.0,
            "independent_gradient": 4.0,
            "momentum": 1.0 + (1.0 - b) / (1.0 + b),
        }[self.noise_reference]
        scale = (1.0 - self.beta_2**n) * sample
        return np.outer(rows, columns) / np.mean(rows) / scale

    def _momentum_variance(self):
        """That of M over that of one gradient, from the weights in M."""
        weights = (1.0 - self.beta_1) * self.beta_1 ** np.arange(2000)
        if self.nesterov:
            weights *= self.beta_1
            weights[0] += 1.0 - self.beta_1
        return np.sum(weights**2)

    def _set_ratios(self):
        if self.alpha is None:
            return
        roles = {layer.role for layer in self.layers}
        in_signal = self.alpha_unit == "signal"
        for group in [roles] if in_signal else [{role} for role in roles]:
            members = [
                (index, number)
                for index, layer in enumerate(self.layers)
                if layer.role in group
                for number in range(len(self.noise[index]))
            ]
            for index, number in members:
                self.ratios[index][number] = 1.0
            noisy = [
                (index, number)
                for index, number in members
                if self.noise[index][number] > 0.0
            ]
            if not noisy:
                continue
            h = np.array([self._corrected(i)[n] for i, n in noisy])
            alpha = self.alpha
            if self.alpha_unit == "group_noise":
                alpha = self.alpha * np.sqrt(np.mean(h))
            a = alpha / np.sqrt(alpha**2 + h)
            if self.group_reduction == "max":
                ratios = np.sqrt(a / np.max(a))
            else:
                ratios = np.sqrt(a) / np.mean(np.sqrt(a))
            for (index, number), ratio in zip(noisy, ratios, strict=True):
                self.ratios[index][number] = ratio

    def _polar(self, matrix):
        if self.ns_coefficients == "exact":
            return exact_polar(matrix)
        rows = self.ns_coefficients
        if isinstance(rows, str):
            rows = COEFFICIENTS[rows]
        return newton_schulz(matrix, rows, self.ns_steps)

    def _dual_norm(self, layer, d):
        d_in, d_out = d.shape
        if layer.role == "hidden":
            estimator = self.noise_estimator
            if estimator == "auto" and self.alpha_unit == "signal":
                estimator = "frobenius"
            if estimator == "frobenius":
                nuclear = math.sqrt(min(d.shape)) * np.linalg.norm(d)
            elif estimator in ("svd", "lanczos", "auto"):
                nuclear = np.sum(np.linalg.svd(d, compute_uv=False))
            else:
                nuclear = np.sum(d * self._polar(d))
            return math.sqrt(d_out / d_in) * nuclear
        if layer.role == "embedding":  # rows are features, columns tokens
            return np.max(np.sum(np.abs(d), axis=1))
        if self.vector_norm == "sign":
            return np.sum(np.abs(d))
        return math.sqrt(d.size) * np.linalg.norm(d)

    def _scaled_lmo(self, layer, m, variance=None):
        """s O_t: the linear minimization oracle times the step scale."""
        d_in, d_out = m.shape
        if layer.role == "hidden":
            if variance is not None:
                rows, columns = variance.mean(axis=1), variance.mean(axis=0)
                rows = rows + SIGNAL_WEIGHT * np.mean(m**2)
                columns = columns + SIGNAL_WEIGHT * np.mean(m**2)
                m = m / np.sqrt(np.outer(rows, columns))
            if self.step_scale == "operator":
                return -math.sqrt(d_out / d_in) * self._polar(m)
            scale = self.hidden_scale * math.sqrt(max(d_in, d_out))
            if self.step_scale == "fan_in":
                scale *= math.sqrt(768 / d_in)
            return -scale * self._polar(m)
        if layer.role == "embedding":
            if variance is not None:
                noise = self._momentum_variance() * variance
                shrunk = m / np.sqrt(m**2 + noise)
                return -self.embedding_scale * shrunk / max(d_in, self.narrow)
            return -self.embedding_scale * np.sign(m) / max(d_in, self.narrow)
        if self.vector_norm == "sign":
            return -self.vector_scale * np.sign(m)
        norm = np.linalg.norm(m)
        if norm == 0.0:
            return np.zeros_like(m)
        return -self.vector_scale * math.sqrt(m.size) * m / norm


def _as_float64(gradients):
    return [
        None if g is None else np.asarray(g, dtype=np.float64)
        for g in gradients
    ]


def _rounded(array, dtype):
    dtype = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    return array.astype("float32").astype(dtype).astype("float64")


def _mean(lists):
    return [
        None if one[0] is None else np.mean(one, axis=0)
        for one in zip(*lists, strict=True)
    ]


def _subtract(left, right):
    return [
        None if a is None else a - b for a, b in zip(left, right, strict=True)
    ]
