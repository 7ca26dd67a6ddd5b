"""LANTON: noise-adaptive layerwise learning rates, Algorithm 1."""

import functools
import math
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_lanton.arguments import check_choice
from keras_lanton.arguments import check_number
from keras_lanton.base import LayerwiseOptimizer
from keras_lanton.base import State
from keras_lanton.base import backend
from keras_lanton.noise import noise_factor
from keras_lanton.noise import update_noise
from keras_lanton.norms import RMS
from keras_lanton.norms import Norm
from keras_lanton.norms import Sign
from keras_lanton.norms import Spectral
from keras_lanton.norms import lanczos_nuclear_norm
from keras_lanton.norms import randomized_svd_nuclear_norm
from keras_lanton.norms import svd_nuclear_norm
from keras_lanton.polar import coefficient_rows
from keras_lanton.rescaling import group_noise
from keras_lanton.rescaling import layer_ratio
from keras_lanton.roles import Layer
from keras_lanton.rounds import Round

Tensor = Any


@keras.saving.register_keras_serializable(package="keras_lanton")
class Lanton(LayerwiseOptimizer):
    """Optimizer that slows down the layers whose gradient is noisy.

    Per layer, with gradient G_t, momentum B_t and noise H_t:

        B_t = b1 B_{t-1} + (1 - b1) G_t                          line 5
        O_t = LMO(B_t)                                           line 6
        H_t = b2 H_{t-1} + (1 - b2) ||D_t||_*^2                  line 7
        a_t = alpha / sqrt(alpha^2 + H_t)                        line 8
        eta_t^l = eta_t sqrt(a_t / max of a_t over the group)    line 9
        X_{t+1} = X_t - eta_t gamma X_t + eta_t^l s O_t          line 10

    The LMO, the dual norm ||.||_* and the step scale s depend on the role of
    the layer: `"hidden"` (matrices: U V^T), `"embedding"` (tables and heads:
    sign) or `"vector"` (gains and biases: normalized). D_t is the noise
    sample. A variable without a gradient, or with one that is zero
    everywhere, keeps its weights and state on that step.

    Args:
        learning_rate: Float, `keras.optimizers.schedules` schedule, or a
            callable without arguments. With `gradient_accumulation_steps`
            Keras counts micro-steps in schedules.
        beta_1: Decay of the momentum B, in [0, 1).
        beta_2: Decay of the noise H, in [0, 1).
        alpha: Above 0: how much noise a layer may have before it is slowed
            down. Smaller adapts more.
        alpha_unit: `"group_noise"`: alpha is in units of the group's RMS
            noise; `"absolute"`: in the units of the dual norm, as printed.
        group_reduction: `"max"`: rates relative to the quietest layer, as
            printed; `"mean"`: relative to the group's mean, so that the mean
            rate stays eta_t.
        noise_interval: Steps from one measurement of a matrix to the next, at
            least 1.
        noise_schedule: `"staggered"`: on every step another part of the
            matrices is measured, so that steps take the same time and only
            that part's previous gradient is kept; `"interval"`: all on one
            step, as printed.
        noise_reference: The noise sample D_t. `"previous_gradient"`:
            G_t - G_{t-1} (Option I); `"independent_gradient"`: difference of
            the means of odd and even micro-batches, before clipping
            (Option II), needs an even `gradient_accumulation_steps`;
            `"momentum"`: G_t - B_{t-1}, without a second buffer.
        noise_estimator: Nuclear norm of the hidden layers' samples:
            `"lanczos"` (sketch and stochastic Lanczos quadrature, within a
            few percent), `"newton_schulz"` (<D, polar(D)>), `"svd"` (exact)
            or `"randomized_svd"` (the paper's).
        hidden_scale: RMS of a hidden step of rate 1, at least 0; only with
            `step_scale="rms_matched"`.
        embedding_scale: r1, at least 0: entries of an embedding step of rate
            1 are r1 / width.
        vector_scale: r2, at least 0: RMS of a vector step of rate 1.
        vector_norm: `"rms"`, or `"sign"` for the paper's CNN recipe.
        step_scale: Hidden steps: `"rms_matched"`:
            hidden_scale sqrt(max(d_in, d_out)) U V^T; `"operator"`:
            sqrt(d_out / d_in) U V^T.
        nesterov: Whether b1 B_t + (1 - b1) G_t goes to line 6.
        ns_steps: Newton-Schulz steps, at least 1.
        ns_coefficients: `"jordan"`, `"you"`, `"polar_express"` or rows
            `(a, b, c)`; the last row is repeated up to `ns_steps`.
        ns_dtype: Of the products in Newton-Schulz: `"float32"`, `"float16"`,
            `"bfloat16"`, or `"auto"`: float32 on a CPU, float16 on a GPU,
            bfloat16 on a TPU. Matrices are normalized in float32 before.
        max_temporary_bytes: Matrices of equal view are orthogonalized
            together as far as their temporaries fit into this, at least one
            variable at a time. Defaults to 512 MiB.
        momentum_dtype: Dtype of the momentum, e.g. `"bfloat16"`. Defaults to
            each variable's own.
        previous_gradient_dtype: Dtype of the gradients that are kept for the
            next step. Defaults to float32.
        nonfinite: `"skip"`: a step with a NaN or infinity in any gradient
            changes nothing but the iteration count and `skipped_steps`;
            `"propagate"`: Keras' usual behaviour.
        weight_decay: gamma, decoupled, at the base rate; None or at least 0.
        weight_decay_exclude: Regular expressions on the paths of variables
            that do not decay.
        rank: Rank of `"randomized_svd"`, at least 1. Defaults to 6.
        power_iterations: Power iterations of `"randomized_svd"`, at least 0.
            Defaults to 2.
        **kwargs: Arguments of `keras.optimizers.Optimizer`.

    Raises:
        ValueError: For a wrong argument, naming it, what is allowed and what
            was received.

    Example:
        >>> model.compile(optimizer=Lanton(learning_rate=5e-3), loss="mse")

    References:
        Hao, Gong, Xu, Wang, Liu, Noise-Adaptive Layerwise Learning Rates,
        arXiv 2510.14009, Algorithm 1. Where this departs from the paper:
        docs/deviations.md.
    """

    def __init__(
        self,
        learning_rate: Any = 5e-3,
        *,
        beta_1: float = 0.95,
        beta_2: float = 0.9,
        alpha: float = 0.3,
        alpha_unit: str = "group_noise",
        group_reduction: str = "max",
        noise_interval: int = 10,
        noise_schedule: str = "staggered",
        noise_reference: str = "previous_gradient",
        noise_estimator: str = "lanczos",
        hidden_scale: float = 0.2,
        embedding_scale: float = 300.0,
        vector_scale: float = 1.0,
        vector_norm: str = "rms",
        step_scale: str = "rms_matched",
        nesterov: bool = False,
        ns_steps: int = 5,
        ns_coefficients: str | Sequence[Sequence[float]] = "jordan",
        ns_dtype: str = "auto",
        max_temporary_bytes: int = 2**29,
        momentum_dtype: str | None = None,
        previous_gradient_dtype: str | None = None,
        nonfinite: str = "skip",
        weight_decay: float | None = 0.1,
        weight_decay_exclude: Sequence[str] | None = None,
        rank: int | None = None,
        power_iterations: int | None = None,
        name: str = "lanton",
        **kwargs: Any,
    ) -> None:
        _check_arguments(locals(), kwargs)
        super().__init__(
            learning_rate,
            nonfinite=nonfinite,
            weight_decay=weight_decay,
            weight_decay_exclude=weight_decay_exclude,
            name=name,
            **kwargs,
        )
        self.beta_1 = float(beta_1)
        self.beta_2 = float(beta_2)
        self.alpha = float(alpha)
        self.alpha_unit = alpha_unit
        self.group_reduction = group_reduction
        self.noise_interval = int(noise_interval)
        self.noise_schedule = noise_schedule
        self.noise_reference = noise_reference
        self.noise_estimator = noise_estimator
        self.hidden_scale = float(hidden_scale)
        self.embedding_scale = float(embedding_scale)
        self.vector_scale = float(vector_scale)
        self.vector_norm = vector_norm
        self.step_scale = step_scale
        self.nesterov = bool(nesterov)
        self.ns_steps = int(ns_steps)
        self.ns_coefficients = (
            ns_coefficients
            if isinstance(ns_coefficients, str)
            else tuple(tuple(map(float, row)) for row in ns_coefficients)
        )
        self.ns_dtype = ns_dtype
        self.max_temporary_bytes = int(max_temporary_bytes)
        self.momentum_dtype = momentum_dtype
        self.previous_gradient_dtype = previous_gradient_dtype
        self.rank = rank
        self.power_iterations = power_iterations
        self.slots = {"momentum": momentum_dtype}
        if noise_reference == "independent_gradient":
            self.slots["gradient_difference"] = None
        self.norms = self._make_norms()

    def _make_norms(self) -> dict[str, Norm]:
        """The norm of each role."""
        estimators = {
            "lanczos": lanczos_nuclear_norm,
            "newton_schulz": None,
            "svd": svd_nuclear_norm,
            "randomized_svd": functools.partial(
                randomized_svd_nuclear_norm,
                rank=6 if self.rank is None else self.rank,
                power_iterations=(
                    2
                    if self.power_iterations is None
                    else self.power_iterations
                ),
            ),
        }
        rows = coefficient_rows(self.ns_coefficients, self.ns_steps)
        return {
            "hidden": Spectral(
                rows=rows,
                nuclear_norm=estimators[self.noise_estimator],
                dtype=self.ns_dtype,
            ),
            "embedding": Sign(),
            "vector": RMS() if self.vector_norm == "rms" else Sign(),
        }

    def buffers(self) -> dict[str, list[tuple[tuple[int, ...], str]]]:
        """Decides what is measured when, and so what is kept for it.

        Returns:
            Of the previous gradient only the share of each round that the
            next step measures.
        """
        self._plan.lay_out(
            interval=self.noise_interval,
            staggered=self.noise_schedule == "staggered",
            max_temporary_bytes=self.max_temporary_bytes,
        )
        if self.noise_reference != "previous_gradient":
            return {}
        dtype = self.previous_gradient_dtype or "float32"
        shapes = [measuring.shape for measuring in self._plan.rounds]
        return {"previous_gradient": [(shape, dtype) for shape in shapes]}

    def step(
        self,
        G: Sequence[Tensor],
        X: Sequence[Tensor],
        state: State,
        *,
        active: Tensor,
        eta: Tensor,
        t: Tensor,
    ) -> tuple[list[Tensor], State]:
        """One step of Algorithm 1 for all layers [Alg. 1, lines 5 to 10].

        Args:
            G: Gradients, one per layer, shaped as the weights.
            X: Weights, likewise.
            state: `"momentum"`, `"noise"`, `"measurements"`, `"last_step"`
                and, by noise reference, `"previous_gradient"` (one share per
                round) or `"gradient_difference"`.
            active: Which layers have a gradient, `(variables,)` bool.
            eta: Learning rate, float32 scalar.
            t: Number of this step, int32 scalar, from 1.

        Returns:
            The new weights and the new state, in the dtypes of the old.
        """
        B_last = [_wide(b) for b in state["momentum"]]
        G = [ops.cast(g, b.dtype) for g, b in zip(G, B_last, strict=True)]
        moves = ops.cast(active, "float32")

        # Line 7, first: line 5 may overwrite B_{t-1}.
        measured = self._measure(G, B_last, state, active, t)

        # Line 5: c = 1 - b1, but 1 at a layer's first gradient (B_0 = G_1)
        # and 0 without a gradient.
        first = state["last_step"] == 0
        c = ops.where(first, 1.0, 1.0 - self.beta_1) * moves
        ahead = ops.minimum(c, 1.0 - self.beta_1)
        keep = 1.0 - eta * self._weight_decays() * moves
        c, ahead, keep = backend.unpack(c, ahead, keep)
        B = backend.lerp(B_last, G, c, in_place=True)

        # Lines 8 and 9.
        ratio = self._ratio(measured["noise"], measured["measurements"])
        eta_l = eta * ratio * ops.take(moves, self._plan.owners)

        # Lines 6 and 10: s O at the rate of each matrix, decay at the base
        # rate; one stack after the other, which keeps memory low where steps
        # are eager.
        s_eta_l = self._step_scales() * eta_l
        X = list(X)
        for stack, matrices in self._plan.stacks:
            M = B
            if self.nesterov:
                M = _lookahead(B, G, ahead, stack.indices)
            O = self.norms[stack.role].lmo(stack.gather(M))
            O = backend.scaled(O, ops.take(s_eta_l, matrices)[:, None, None])
            moved = backend.move(
                [X[i] for i in stack.indices],
                stack.scatter(O),
                [keep[i] for i in stack.indices],
            )
            for i, x in zip(stack.indices, moved, strict=True):
                X[i] = x

        momentum = [
            ops.cast(new, old.dtype)
            for new, old in zip(B, state["momentum"], strict=True)
        ]
        last_step = ops.where(active, t, state["last_step"])
        new = {**measured, "momentum": momentum, "last_step": last_step}
        return X, {**state, **new}

    def _measure(
        self,
        G: Sequence[Tensor],
        B_last: Sequence[Tensor],
        state: State,
        active: Tensor,
        t: Tensor,
    ) -> State:
        """sqrt(H_t) of the matrices whose turn it is [Alg. 1, line 7].

        Args:
            G: Gradients, one per layer.
            B_last: B_{t-1}, likewise.
            state: The state before this step.
            active: Which layers have a gradient, `(variables,)` bool.
            t: Number of this step.

        Returns:
            The new `"noise"` and `"measurements"`, and the gradients that the
            next step compares with, if it does.
        """
        turns = self._turns(t)
        duals = []
        for k, (measuring, turn) in enumerate(
            zip(self._plan.rounds, *backend.unpack(turns), strict=True)
        ):
            dual = functools.partial(self._dual, k, turn, G, B_last, state)
            duals.append(
                backend.cond(
                    turn < len(measuring.shares),
                    dual,
                    functools.partial(ops.zeros, (measuring.size,)),
                )
                if measuring.pauses
                else dual()
            )
        places = self._plan.places
        d = ops.take(ops.concatenate(duals), places.slots)
        d = ops.convert_to_tensor(self._plan.flips) * d
        comparable = self._comparable(state["last_step"], active, t)
        known = ops.logical_and(
            ops.take(turns, places.rounds)
            == ops.convert_to_tensor(places.shares),
            ops.take(comparable, self._plan.owners),
        )
        noise = update_noise(state["noise"], d, beta_2=self.beta_2)
        new = {
            "noise": ops.where(known, noise, state["noise"]),
            "measurements": state["measurements"] + ops.cast(known, "int32"),
        }
        if "previous_gradient" in state:
            # Without any gradient there is none to keep.
            coming = ops.where(
                ops.any(active), self._turns(t + 1), self._plan.share_counts
            )
            (coming,) = backend.unpack(coming)
            new["previous_gradient"] = [
                _share(measuring, turn, G, otherwise=old)
                for measuring, turn, old in zip(
                    self._plan.rounds,
                    coming,
                    state["previous_gradient"],
                    strict=True,
                )
            ]
        return new

    def _turns(self, t: Tensor) -> Tensor:
        """The share of each round whose turn it is on step t.

        Returns:
            `(rounds,)` int32; the number of its shares where a round pauses.
        """
        first = 1 if self.noise_reference == "independent_gradient" else 2
        rounds = self._plan.rounds
        late = np.array([first + r.offset for r in rounds], "int32")
        turns = ops.mod(t - ops.convert_to_tensor(late), self.noise_interval)
        return ops.minimum(
            turns, ops.convert_to_tensor(self._plan.share_counts)
        )

    def _dual(
        self,
        k: int,
        turn: Any,
        G: Sequence[Tensor],
        B_last: Sequence[Tensor],
        state: State,
    ) -> Tensor:
        """Dual norms of D_t in a share of round k, `(size,)`."""
        measuring = self._plan.rounds[k]
        if self.noise_reference == "independent_gradient":
            D = _share(measuring, turn, state["gradient_difference"])
        elif self.noise_reference == "momentum":
            D = _share(measuring, turn, G) - _share(measuring, turn, B_last)
        else:
            G_last = ops.cast(state["previous_gradient"][k], "float32")
            D = _share(measuring, turn, G) - G_last
        return self.norms[measuring.role].dual(D)

    def _comparable(
        self, last_step: Tensor, active: Tensor, t: Tensor
    ) -> Tensor:
        """Which layers have what D_t compares, `(variables,)` bool."""
        if self.noise_reference == "independent_gradient":
            return active
        known = ops.logical_and(active, last_step > 0)
        if self.noise_reference == "momentum":
            return known
        # Only the immediately preceding gradient will do.
        return ops.logical_and(known, last_step == t - 1)

    def _ratio(self, noise: Tensor, measurements: Tensor) -> Tensor:
        """Rate of each matrix over eta_t [Alg. 1, lines 8 and 9]."""
        noise = self._comparable_noise(noise, measurements)
        groups = [ops.convert_to_tensor(m) for m in self._plan.groups]
        alpha = self.alpha
        if self.alpha_unit == "group_noise":
            alpha = alpha * group_noise(noise, groups=groups)
        a = noise_factor(noise, alpha=alpha)
        return layer_ratio(
            a, noise, groups=groups, reduction=self.group_reduction
        )

    def _comparable_noise(self, noise: Tensor, measurements: Tensor) -> Tensor:
        """sqrt(H) as if all matrices were measured equally often.

        H starts at zero and grows with every measurement. Where all are
        measured at once that is the same factor for all, as printed; else it
        would make those look quiet that were measured later.
        """
        if self.noise_schedule == "interval":
            return noise
        n = ops.cast(measurements, "float32")
        return noise / ops.sqrt(
            ops.where(n > 0, 1.0 - ops.power(self.beta_2, n), 1.0)
        )

    def _step_scales(self) -> Tensor:
        """The step scale of each matrix, as it lies in its stack."""
        scales = np.array(list(map(self._step_scale, self.moving_layers)))
        return ops.convert_to_tensor(
            scales[self._plan.owners] * self._plan.flips, "float32"
        )

    def _step_scale(self, layer: Layer) -> float:
        """The step scale s of line 10, a factor on the LMO."""
        if layer.role == "embedding":
            return self.embedding_scale
        if layer.role == "vector":
            return self.vector_scale
        if self.step_scale == "operator":
            return 1.0
        operator = math.sqrt(layer.d_out / layer.d_in)
        return (
            self.hidden_scale
            * math.sqrt(max(layer.d_in, layer.d_out))
            / operator
        )

    def _weight_decays(self) -> Tensor:
        """Gamma of each layer, `(variables,)`, 0 where it is excluded."""
        gamma = self.weight_decay or 0.0
        return ops.convert_to_tensor(
            gamma * np.array(self.decayed_layers, "float32")
        )

    def observe(
        self, gradients: Sequence[Tensor], variables: Sequence[Any]
    ) -> None:
        """Keeps the difference of odd and even micro-batches (Option II).

        The step sees their mean only, so this is summed up here.

        Args:
            gradients: Of this micro-batch; None where there is none.
            variables: Their variables.
        """
        if self.noise_reference != "independent_gradient":
            return
        k = self.gradient_accumulation_steps
        number = ops.convert_to_tensor(self._iterations) % k
        # Means of k / 2 gradients each, of opposite signs, loss unscaled.
        sign = 1 - 2 * (number % 2)
        scale = k / 2 * (self.loss_scale_factor or 1.0)
        given = {
            self._get_variable_index(variable): gradient
            for variable, gradient in zip(variables, gradients, strict=True)
        }
        totals = self._plan.state["gradient_difference"]
        for i, total in zip(self._plan.moving, totals, strict=True):
            last = ops.convert_to_tensor(total)
            last = ops.where(number == 0, ops.zeros_like(last), last)
            if given.get(i) is not None:
                term = ops.cast(given[i], last.dtype) / scale
                last = last + ops.cast(sign, last.dtype) * term
            self.assign(total, last)

    def noise_report(self) -> dict[str, dict[str, np.ndarray]]:
        """What was measured, per variable path.

        Returns:
            For each path a dict of arrays `(batch,)`: `"noise"`, sqrt(H) in
            the units of the dual norm; `"ratio"`, the layer's rate over the
            base rate; `"learning_rate"`, their product in the last step (in
            the first one, before it). A path that occurs twice has its
            position in `moving_layers` appended.

        Raises:
            ValueError: Before the optimizer is built.
        """
        layers = self.moving_layers
        noise, measurements = (
            ops.convert_to_tensor(self._plan.state[name])
            for name in ("noise", "measurements")
        )
        eta = float(ops.convert_to_numpy(self._last_learning_rate()))
        ratio = ops.convert_to_numpy(self._ratio(noise, measurements))
        noise = ops.convert_to_numpy(
            self._comparable_noise(noise, measurements)
        )
        report: dict[str, dict[str, np.ndarray]] = {}
        for i, layer in enumerate(layers):
            here = self._plan.owners == i
            path = f"{layer.path}:{i}" if layer.path in report else layer.path
            report[path] = {
                "noise": noise[here],
                "ratio": ratio[here],
                "learning_rate": eta * ratio[here],
            }
        return report

    def _last_learning_rate(self) -> Tensor:
        """The rate eta_t of the last step, not of the one to come."""
        schedule = self._learning_rate
        if not isinstance(
            schedule, keras.optimizers.schedules.LearningRateSchedule
        ):
            return self.learning_rate
        count = int(ops.convert_to_numpy(self._iterations))
        window = self.gradient_accumulation_steps or 1
        return schedule(max(count // window * window - 1, 0))

    def get_config(self) -> dict[str, Any]:
        """Every argument and the decided roles, as JSON types."""
        config = super().get_config()
        config.update({name: getattr(self, name) for name in ARGUMENTS})
        if not isinstance(self.ns_coefficients, str):
            config["ns_coefficients"] = [list(r) for r in self.ns_coefficients]
        return config


# Arguments of Lanton that are not of its base class.
CHOICES = {
    "alpha_unit": ("group_noise", "absolute"),
    "group_reduction": ("max", "mean"),
    "noise_schedule": ("staggered", "interval"),
    "noise_reference": (
        "previous_gradient",
        "independent_gradient",
        "momentum",
    ),
    "noise_estimator": ("lanczos", "newton_schulz", "randomized_svd", "svd"),
    "vector_norm": ("rms", "sign"),
    "step_scale": ("rms_matched", "operator"),
    "ns_dtype": ("auto", "float32", "float16", "bfloat16"),
}
DTYPES = ("float32", "float16", "bfloat16")
NUMBERS: dict[str, tuple[str, Callable[[float], bool], bool]] = {
    "beta_1": ("a number in [0, 1)", lambda x: 0 <= x < 1, False),
    "beta_2": ("a number in [0, 1)", lambda x: 0 <= x < 1, False),
    "alpha": ("a number above 0", lambda x: x > 0, False),
    "hidden_scale": ("a number of at least 0", lambda x: x >= 0, False),
    "embedding_scale": ("a number of at least 0", lambda x: x >= 0, False),
    "vector_scale": ("a number of at least 0", lambda x: x >= 0, False),
    "noise_interval": ("an integer of at least 1", lambda x: x >= 1, True),
    "ns_steps": ("an integer of at least 1", lambda x: x >= 1, True),
    "max_temporary_bytes": ("an integer of at least 1", lambda x: x >= 1, True),
    "rank": ("None or an integer of at least 1", lambda x: x >= 1, True),
    "power_iterations": (
        "None or an integer of at least 0",
        lambda x: x >= 0,
        True,
    ),
}
STATE_DTYPES = ("momentum_dtype", "previous_gradient_dtype")
ARGUMENTS = (*CHOICES, *NUMBERS, *STATE_DTYPES, "nesterov", "ns_coefficients")


def _check_arguments(
    given: Mapping[str, Any], kwargs: Mapping[str, Any]
) -> None:
    """ValueError for the first wrong argument of `Lanton`."""
    for name, allowed in CHOICES.items():
        check_choice(name, given[name], allowed)
    for name in STATE_DTYPES:
        if given[name] is not None:
            check_choice(name, given[name], DTYPES, also="None")
    for name, (wanted, allows, integer) in NUMBERS.items():
        if given[name] is not None or not wanted.startswith("None"):
            check_number(name, given[name], wanted, allows, integer=integer)
    if not isinstance(given["nesterov"], (bool, np.bool_)):
        raise ValueError(
            "`nesterov` must be True or False. "
            f"Received: nesterov={given['nesterov']!r}"
        )
    coefficient_rows(given["ns_coefficients"], given["ns_steps"])
    for name in ("rank", "power_iterations"):
        if given[name] is not None and (
            given["noise_estimator"] != "randomized_svd"
        ):
            raise ValueError(
                f"`{name}` belongs to noise_estimator='randomized_svd'. "
                f"Received: {name}={given[name]!r}, "
                f"noise_estimator={given['noise_estimator']!r}"
            )
    if given["previous_gradient_dtype"] is not None and (
        given["noise_reference"] != "previous_gradient"
    ):
        raise ValueError(
            "`previous_gradient_dtype` belongs to "
            "noise_reference='previous_gradient'. Received: "
            f"previous_gradient_dtype={given['previous_gradient_dtype']!r}, "
            f"noise_reference={given['noise_reference']!r}"
        )
    if given["step_scale"] == "operator" and given["hidden_scale"] != 0.2:
        raise ValueError(
            "`hidden_scale` belongs to step_scale='rms_matched'. Received: "
            f"hidden_scale={given['hidden_scale']!r}, step_scale='operator'"
        )
    steps = kwargs.get("gradient_accumulation_steps")
    if given["noise_reference"] == "independent_gradient" and (
        not steps or steps % 2
    ):
        raise ValueError(
            "noise_reference='independent_gradient' needs an even "
            "`gradient_accumulation_steps`: it compares the odd with the even "
            "micro-batches. "
            f"Received: gradient_accumulation_steps={steps!r}"
        )


def _wide(x: Tensor) -> Tensor:
    """Half precision as float32, anything else as it is."""
    name = keras.backend.standardize_dtype(x.dtype)
    return ops.cast(x, "float32") if name in ("float16", "bfloat16") else x


def _lookahead(
    B: Sequence[Tensor],
    G: Sequence[Tensor],
    weights: Sequence[Any],
    indices: Sequence[int],
) -> dict[int, Tensor]:
    """Nesterov's b1 B_t + (1 - b1) G_t of some layers."""
    found = backend.lerp(
        *([tensors[i] for i in indices] for tensors in (B, G, weights))
    )
    return dict(zip(indices, found, strict=True))


def _share(
    measuring: Round,
    turn: Any,
    tensors: Sequence[Tensor],
    otherwise: Tensor | None = None,
) -> Tensor:
    """Share number `turn` of the layers' tensors.

    Args:
        measuring: The round.
        turn: Integer scalar.
        tensors: One per layer.
        otherwise: What to return where the round pauses.

    Returns:
        `(size, rows, columns)`, in the dtype of `otherwise` or else float32.
    """
    dtype = "float32" if otherwise is None else otherwise.dtype

    def gather(i: int) -> Tensor:
        return ops.cast(measuring.gather(i, tensors), dtype)

    count = len(measuring.shares)
    branches = [functools.partial(gather, i) for i in range(count)]

    def share() -> Tensor:
        if count == 1:
            return gather(0)
        if measuring.is_small and not isinstance(turn, int):
            shares = measuring.gather_all(tensors)
            return ops.cast(ops.take(shares, turn, axis=0), dtype)
        return backend.switch(turn, branches)

    if otherwise is None:
        return share()
    (found,) = backend.replace_if(
        turn < count, lambda old: (share(),), otherwise
    )
    return found
