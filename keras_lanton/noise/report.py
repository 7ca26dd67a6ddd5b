"""Reports of the measured noise, for `noise_report` and `NoiseMonitor`."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from keras import ops

from keras_lanton.noise.adaptive_rate import NoiseAdaptiveRate
from keras_lanton.types import Tensor
from keras_lanton.variables.layout import VariableLayout


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


def report_noise(
    rate: NoiseAdaptiveRate,
    layout: VariableLayout,
    snapshot: NoiseSnapshot,
    eta: float,
    *,
    roles: Sequence[str],
) -> dict[str, dict[str, np.ndarray]]:
    """Noise, ratio and learning rate by variable path.

    Args:
        rate: The part that measured.
        layout: The variables.
        snapshot: From `noise_snapshot`.
        eta: Base learning rate of the last step.
        roles: Roles of the variables whose noise is measured.

    Returns:
        For each path a dict of arrays `(batch,)`; see
        `LMOOptimizer.noise_report`.
    """
    measured = (snapshot.noise, snapshot.measurements)
    noise, ratio = (
        ops.convert_to_numpy(x)
        for x in (
            rate.comparable_noise(*measured),
            rate.ratio(layout, *measured),
        )
    )
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
