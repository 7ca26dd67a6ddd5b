"""Optimizers whose steps are LMOs of norms, one norm per role.

What Lanton and the baselines share: which matrices go together, their noise,
and moving them. The order of the lines is each optimizer's own `step`.
"""

import dataclasses
import math
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_lanton.adaptive_rate import NoiseAdaptiveRate
from keras_lanton.arguments import COUNT
from keras_lanton.arguments import DTYPES
from keras_lanton.arguments import Numbers
from keras_lanton.arguments import check_bool
from keras_lanton.arguments import check_choice
from keras_lanton.arguments import check_numbers
from keras_lanton.arguments import shown
from keras_lanton.backends.functional import Devices
from keras_lanton.base import LayerwiseOptimizer
from keras_lanton.base import State
from keras_lanton.base import backend
from keras_lanton.norms import Norm
from keras_lanton.norms import Spectral
from keras_lanton.polar import coefficient_rows
from keras_lanton.roles import Layer
from keras_lanton.stacks import Stack

Tensor = Any


class NormOptimizer(LayerwiseOptimizer):
    """A layerwise optimizer with a norm for each of some roles.

    Subclasses write `step`, `make_norms` and `scale_of`.

    Args:
        learning_rate: Float, schedule, or callable without arguments.
        noise: Makes the rates of layers with a norm depend on their gradient
            noise, or None.
        nesterov: Whether to look ahead before the LMO.
        ns_steps: Newton-Schulz steps, from 1 to 100.
        ns_coefficients: A name, or rows `(a, b, c)`.
        ns_dtype: Of the products in Newton-Schulz.
        max_temporary_bytes: What one stack may need in temporaries.
        momentum_dtype: Defaults to each variable's own.
        shard_orthogonalization: Whether devices share out the matrices.
        **kwargs: Arguments of `LayerwiseOptimizer`.

    Raises:
        ValueError: For a wrong argument, naming it.
    """

    arguments: tuple[str, ...] = (
        "nesterov",
        "ns_steps",
        "ns_coefficients",
        "ns_dtype",
        "max_temporary_bytes",
        "momentum_dtype",
        "shard_orthogonalization",
    )

    def __init__(
        self,
        learning_rate: Any,
        *,
        noise: NoiseAdaptiveRate | None = None,
        nesterov: bool = False,
        ns_steps: int = 5,
        ns_coefficients: str | Sequence[Sequence[float]] = "jordan",
        ns_dtype: str = "auto",
        max_temporary_bytes: int = 2**29,
        momentum_dtype: str | None = None,
        shard_orthogonalization: bool | None = None,
        **kwargs: Any,
    ) -> None:
        check_numbers(NUMBERS, locals())
        check_bool("nesterov", nesterov)
        check_choice("ns_dtype", ns_dtype, ("auto", *DTYPES))
        if momentum_dtype is not None:
            check_choice("momentum_dtype", momentum_dtype, DTYPES, also="None")
        coefficient_rows(ns_coefficients, ns_steps)
        if noise is not None and not isinstance(noise, NoiseAdaptiveRate):
            raise ValueError(
                "`noise` must be None or a `NoiseAdaptiveRate`. "
                f"Received: noise={shown(noise)}"
            )
        super().__init__(learning_rate, **kwargs)
        if noise is not None:
            noise.check_accumulation(self.gradient_accumulation_steps)
        self.slots = {"momentum": momentum_dtype, **self.slots}
        self.slots |= noise.slots() if noise else {}
        self.noise = noise
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
        check_bool(
            "shard_orthogonalization", shard_orthogonalization, optional=True
        )
        self.shard_orthogonalization = shard_orthogonalization
        # Now, not in `build`: refuses what the backend cannot do.
        backend.devices((), shard_orthogonalization)

    def make_norms(self, hidden: Spectral) -> dict[str, Norm]:
        """The norm of each role that moves by an LMO.

        Args:
            hidden: The spectral norm, by this optimizer's Newton-Schulz.
        """
        raise NotImplementedError

    def buffers(self) -> dict[str, list[tuple[tuple[int, ...], str]]]:
        """Decides what is worked on together, what is measured when."""
        noise = self.noise
        devices = backend.devices(
            self._trainable_variables, self.shard_orthogonalization
        )
        self._plan.layouts = (
            backend.layouts(self._moving_variables())
            if devices
            else [None] * len(self._plan.moving)
        )
        self.norms = self.norms_by_role(devices)
        schedule = noise.noise_schedule if noise else None
        self._plan.lay_out(
            interval=noise.noise_interval if noise else None,
            staggered=schedule == "staggered",
            max_temporary_bytes=self.max_temporary_bytes,
            roles=tuple(self.norms),
            devices=devices,
        )
        return noise.buffers(self._plan) if noise else {}

    def norms_by_role(self, devices: Devices | None = None) -> dict[str, Norm]:
        """The norms of `make_norms`; known before `build`.

        Args:
            devices: That share out the hidden matrices.
        """
        noise = self.noise
        return self.make_norms(
            Spectral(
                rows=coefficient_rows(self.ns_coefficients, self.ns_steps),
                nuclear_norm=noise.nuclear_norm() if noise else None,
                dtype=self.ns_dtype,
                devices=devices,
            )
        )

    def adapt(
        self,
        G: Sequence[Tensor],
        B_last: Sequence[Tensor],
        state: State,
        *,
        active: Tensor,
        t: Tensor,
    ) -> tuple[Tensor, State]:
        """Rates over eta_t, by the noise [Alg. 1, lines 7 to 9].

        Args:
            G: Gradients, one per layer.
            B_last: B_{t-1}, likewise.
            state: Before this step.
            active: Which layers have a gradient, `(variables,)` bool.
            t: Number of this step.

        Returns:
            `(matrices,)` float32, and what changes of the state.
        """
        if self.noise is None or not self._plan.rounds:
            return ops.ones_like(state["noise"]), {}
        new = self.noise.measure(
            self._plan, self.norms, G, B_last, state, active, t
        )
        ratio = self.noise.ratio(self._plan, new["noise"], new["measurements"])
        return ratio, new

    def gather(self, stack: Stack, tensors: Mapping[int, Tensor]) -> Tensor:
        """The matrices of a stack, `(n, rows, columns)`.

        Args:
            stack: Whole layers.
            tensors: One per layer of the stack, by its position.
        """
        indices = stack.indices
        found = backend.laid_out(
            [tensors[i] for i in indices],
            [self._plan.layouts[i] for i in indices],
        )
        return stack.gather(dict(zip(indices, found, strict=True)))

    def move(
        self,
        X: list[Tensor],
        stack: Stack,
        O: Tensor,
        rates: Tensor,
        keep: Sequence[Any],
    ) -> None:
        """X <- keep X + rate O, of the layers in a stack [Alg. 1, line 10].

        Args:
            X: Weights, one per layer; those in the stack are replaced.
            stack: Whole layers.
            O: `(n, rows, columns)`, as the stack; may be overwritten.
            rates: Of each matrix in the stack, `(n,)`.
            keep: What weight decay leaves of each layer, scalars.
        """
        moved = backend.move(
            [X[i] for i in stack.indices],
            stack.scatter(backend.scaled(O, rates[:, None, None])),
            [keep[i] for i in stack.indices],
        )
        for i, x in zip(stack.indices, moved, strict=True):
            X[i] = x

    def scale_of(self, layer: Layer) -> float:
        """The factor s on the LMO of a layer with a norm.

        Args:
            layer: One whose role is in `norms`.
        """
        raise NotImplementedError

    def describe_step(self, layer: Layer) -> str:
        """The RMS of a step at learning rate 1, or who moves the layer."""
        norm = self.norms_by_role().get(layer.role)
        if norm is None:
            return "AdamW"
        rms = norm.lmo_rms(layer.d_in, layer.d_out)
        return f"{self.scale_of(layer) * rms:.3g}"

    def step_scales(self) -> Tensor:
        """The step scale of each matrix, as it lies in its stack."""
        scales = [
            self.scale_of(layer) if layer.role in self.norms else 0.0
            for layer in self.moving_layers
        ]
        return ops.convert_to_tensor(
            np.array(scales)[self._plan.owners] * self._plan.flips, "float32"
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
        if "gradient_difference" not in self._plan.state:
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

    def noise_snapshot(self) -> "NoiseSnapshot":
        """What `noise_report` tells, as it is now.

        Copies on the device: nothing waits for the numbers.

        Raises:
            ValueError: As `noise_report`.
        """
        self._noise_of("noise_snapshot")
        state = self._plan.state
        constant = self.schedule is None
        rate = ops.copy(self.learning_rate) if constant else None
        return NoiseSnapshot(
            noise=ops.copy(state["noise"]),
            measurements=ops.copy(state["measurements"]),
            iterations=ops.copy(self._iterations),
            learning_rate=rate,
        )

    def noise_report(
        self, snapshot: "NoiseSnapshot | None" = None
    ) -> dict[str, dict[str, np.ndarray]]:
        """What was measured, per variable path.

        Args:
            snapshot: From `noise_snapshot`; None is now.

        Returns:
            For each path a dict of arrays `(batch,)`: `"noise"`, sqrt(H) in
            the units of the dual norm; `"ratio"`, the layer's rate over the
            base rate; `"learning_rate"`, their product in the last step (in
            the first one, before it). Layers that AdamW moves have noise 0
            and ratio 1: theirs is not measured. A path that occurs twice has
            its position in `moving_layers` appended.

        Raises:
            ValueError: Before the optimizer is built, or without `noise`.
        """
        rate, owners = self._noise_of("noise_report"), self._plan.owners
        snapshot = snapshot or self.noise_snapshot()
        measured = (snapshot.noise, snapshot.measurements)
        noise, ratio = (
            ops.convert_to_numpy(x)
            for x in (
                rate.comparable_noise(*measured),
                rate.ratio(self._plan, *measured),
            )
        )
        eta = self._last_learning_rate(snapshot)
        report: dict[str, dict[str, np.ndarray]] = {}
        for i, layer in enumerate(self.moving_layers):
            here = owners == i
            path = f"{layer.path}:{i}" if layer.path in report else layer.path
            report[path] = {
                "noise": noise[here],
                "ratio": ratio[here],
                "learning_rate": eta * ratio[here],
            }
        return report

    def _noise_of(self, method: str) -> NoiseAdaptiveRate:
        """What measures; ValueError before `build`, or where nothing does."""
        if self.layers and self.noise is not None:
            return self.noise
        raise ValueError(
            f"`{method}` needs an optimizer that measures noise. "
            f"Received: {type(self).__name__}(noise=None)"
        )

    def _last_learning_rate(self, snapshot: "NoiseSnapshot") -> float:
        """The rate eta_t of the last step, not of the one to come."""
        rate = snapshot.learning_rate
        if rate is None:
            count = int(ops.convert_to_numpy(snapshot.iterations))
            window = self.gradient_accumulation_steps or 1
            last = max(count // window * window - 1, 0)
            rate = backend.value_of(self.schedule, last)
        return float(ops.convert_to_numpy(rate))

    def get_config(self) -> dict[str, Any]:
        """Every argument and the decided roles, as JSON types."""
        config = super().get_config()
        if not isinstance(self.ns_coefficients, str):
            config["ns_coefficients"] = [list(r) for r in self.ns_coefficients]
        config["noise"] = keras.saving.serialize_keras_object(self.noise)
        return config

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any], custom_objects: Any = None
    ) -> "NormOptimizer":
        """Inverse of `get_config`."""
        config = dict(config)
        if isinstance(config.get("noise"), Mapping):
            config["noise"] = keras.saving.deserialize_keras_object(
                config["noise"], custom_objects=custom_objects
            )
        made: NormOptimizer = super().from_config(config, custom_objects)
        return made


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoiseSnapshot:
    """What was measured at one moment, on the device.

    Args:
        noise: sqrt(H) as the state has it, `(matrices,)` float32.
        measurements: How often each was measured, `(matrices,)` int32.
        iterations: Of the optimizer, int scalar.
        learning_rate: The base rate, float32 scalar; None with a schedule,
            which tells it of `iterations`.
    """

    noise: Tensor
    measurements: Tensor
    iterations: Tensor
    learning_rate: Tensor | None


NUMBERS: Numbers = {
    # Each step is a row of coefficients; no matrix needs a hundred.
    "ns_steps": ("an integer in [1, 100]", lambda x: 1 <= x <= 100, True),
    "max_temporary_bytes": COUNT,
}


def rms_matched(layer: Layer) -> float:
    """The factor that gives a hidden LMO the RMS of a step of AdamW, about 1.

    sqrt(max(d_in, d_out)) U V^T over sqrt(d_out / d_in) U V^T.

    References:
        Liu et al. 2025, Muon is Scalable for LLM Training.
    """
    operator = math.sqrt(layer.d_out / layer.d_in)
    return math.sqrt(max(layer.d_in, layer.d_out)) / operator


def lookahead(
    B: Sequence[Tensor], G: Sequence[Tensor], weights: Sequence[Any]
) -> Callable[[Sequence[int]], dict[int, Tensor]]:
    """Nesterov's b1 B_t + (1 - b1) G_t, of the layers that are asked for.

    Of a few at a time: all of them at once would be a copy of the model.
    """

    def some(indices: Sequence[int]) -> dict[int, Tensor]:
        chosen = ([x[i] for i in indices] for x in (B, G, weights))
        return dict(zip(indices, backend.lerp(*chosen), strict=True))

    return some
