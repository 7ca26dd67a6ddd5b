"""Reports of the measured noise, for `noise_report` and `NoiseMonitor`."""

import dataclasses
import warnings
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops

from keras_lanton.backends import backend
from keras_lanton.core.noise import comparable_noise
from keras_lanton.core.noise import rate_ratio
from keras_lanton.core.noise import share_of_measurements
from keras_lanton.core.plan import Plan
from keras_lanton.optimizer.state import StateVariables
from keras_lanton.settings import NoiseAdaptiveRate
from keras_lanton.types import Tensor


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoiseSnapshot:
    """The measured noise at one moment, on the device.

    Args:
        noise: sqrt(H) as the state has it, `(matrices,)` float32.
        measurements: How often each was measured, `(matrices,)` int32.
        iterations: Iterations of the optimizer, int scalar.
        learning_rate: The base rate, float32 scalar; None with a schedule,
            which gives it for `iterations`.
    """

    noise: Tensor
    measurements: Tensor
    iterations: Tensor
    learning_rate: Tensor | None


class NoiseReports:
    """Methods of an optimizer that measures noise.

    `LMOOptimizer` has the attributes.
    """

    noise: NoiseAdaptiveRate | None
    gradient_accumulation_steps: Any
    learning_rate: Any
    micro_steps: Any
    schedule: Any
    skipped_steps: Any
    _check_built: Callable[[str], None]
    _plan: Plan
    _state: StateVariables

    @property
    def lmo_roles(self) -> tuple[str, ...]:
        """Roles that an LMO updates; known before `build`."""
        raise NotImplementedError

    def noise_snapshot(self) -> NoiseSnapshot:
        """A copy of the measured noise, for a later `noise_report`.

        The copy stays on the device, so training does not wait for it.

        Raises:
            ValueError: See `noise_report`.
        """
        self._check_measures("noise_snapshot")
        state = self._state.by_name
        constant = self.schedule is None
        rate = ops.copy(self.learning_rate) if constant else None
        return NoiseSnapshot(
            noise=ops.copy(state["noise"]),
            measurements=ops.copy(state["measurements"]),
            iterations=ops.copy(self.micro_steps),
            learning_rate=rate,
        )

    def noise_report(
        self, snapshot: NoiseSnapshot | None = None
    ) -> dict[str, dict[str, np.ndarray]]:
        """The measured noise and the rates that follow, by variable path.

        Args:
            snapshot: From `noise_snapshot`. None: the present noise.

        Returns:
            For each variable whose noise is measured a dict of arrays
            `(batch,)`: `"noise"`, sqrt(H) in the units of
            `NoiseAdaptiveRate(alpha_unit=)`; `"ratio"`, the matrix' rate over
            the base rate; `"learning_rate"`, their product in the last step.
            The last one has the factor of `rate_multipliers`, too.
            Variables that AdamW updates are left out. If two variables have
            one path, the second has its position in `updated_specs` appended.
            As long as nothing was measured, a snapshot has noise 0 and
            ratio 1; without one the dict is empty, with a warning.

        Raises:
            ValueError: Before the optimizer is built, or without `noise`.
        """
        rate = self._check_measures("noise_report")
        now = snapshot or self.noise_snapshot()
        if snapshot is None and not np.any(
            ops.convert_to_numpy(now.measurements)
        ):
            steps = int(ops.convert_to_numpy(now.iterations))
            warnings.warn(
                "No noise was measured yet: the first steps and skipped ones "
                "measure none. "
                "In a loop of your own on JAX, write the state back first: "
                "`variable.assign(value)` of each of `optimizer.variables`. "
                f"Received: an optimizer after {steps} steps, "
                f"{self.skipped_steps} of them skipped",
                stacklevel=2,
            )
            return {}
        eta = self._last_learning_rate(now)
        return report_noise(rate, self._plan, now, eta, roles=self.lmo_roles)

    def _check_measures(self, method: str) -> NoiseAdaptiveRate:
        """The part that measures; ValueError before `build`, or without it."""
        if self.noise is None:
            raise ValueError(
                f"`{method}` needs an optimizer that measures noise. "
                f"Received: {type(self).__name__}(noise=None)"
            )
        self._check_built(method)
        return self.noise

    def _last_learning_rate(self, snapshot: NoiseSnapshot) -> float:
        """The rate eta_t of the last step, not of the one to come."""
        rate = snapshot.learning_rate
        if rate is None:
            count = int(ops.convert_to_numpy(snapshot.iterations))
            window = self.gradient_accumulation_steps or 1
            last = max(count // window * window - 1, 0)
            rate = backend.value_of(self.schedule, last)
        return float(ops.convert_to_numpy(ops.cast(rate, "float32")))


def report_noise(
    rate: NoiseAdaptiveRate,
    plan: Plan,
    snapshot: NoiseSnapshot,
    eta: float,
    *,
    roles: Sequence[str],
) -> dict[str, dict[str, np.ndarray]]:
    """Noise, ratio and learning rate by variable path.

    Args:
        rate: The part that measured.
        plan: The plan.
        snapshot: From `noise_snapshot`.
        eta: Base learning rate of the last step.
        roles: Roles of the variables whose noise is measured.

    Returns:
        For each path a dict of arrays `(batch,)`; see
        `LMOOptimizer.noise_report`.
    """
    share = share_of_measurements(rate.beta_2, snapshot.measurements)
    measured = (snapshot.noise, share)
    noise, ratio = (
        ops.convert_to_numpy(x)
        for x in (
            comparable_noise(rate, *measured),
            rate_ratio(rate, *measured, plan.rate_groups),
        )
    )
    layout = plan.layout
    report: dict[str, dict[str, np.ndarray]] = {}
    rates = eta * np.array(layout.rate_multipliers)[layout.variable_of_matrix]
    start = 0
    for i, spec in enumerate(layout.updated_specs):
        here = slice(start, start + spec.batch)
        start += spec.batch
        if spec.role not in roles:
            continue
        path = f"{spec.path}:{i}" if spec.path in report else spec.path
        report[path] = {
            "noise": noise[here],
            "ratio": ratio[here],
            "learning_rate": (rates * ratio)[here].astype("float32"),
        }
    return report
