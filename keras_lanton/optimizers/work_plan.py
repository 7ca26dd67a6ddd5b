"""The plan of the matrices that are worked on together, made in `build`."""

import dataclasses
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_lanton import backends
from keras_lanton.backends.functional import Devices
from keras_lanton.noise.adaptive_rate import NoiseAdaptiveRate
from keras_lanton.noise.schedule import Lines
from keras_lanton.noise.schedule import MeasurementPlan
from keras_lanton.noise.schedule import lines_of
from keras_lanton.noise.schedule import make_groups
from keras_lanton.noise.schedule import plan_measurements
from keras_lanton.norms.norms import Norm
from keras_lanton.orthogonalization.batching import is_gathered_whole
from keras_lanton.orthogonalization.batching import stack_size
from keras_lanton.orthogonalization.batching import temporary_bytes
from keras_lanton.types import Tensor
from keras_lanton.variables.layout import VariableLayout
from keras_lanton.variables.spec import VariableSpec
from keras_lanton.variables.stacks import Stack
from keras_lanton.variables.stacks import equal_stacks
from keras_lanton.variables.stacks import positions

backend = backends.load()


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class WorkPlan:
    """The matrices that one step works on together.

    Args:
        norms: Norm of each role that has one.
        stacks: Stacks that are updated together, each with the positions of
            its matrices among all matrices, `(n,)` int32.
        lines: For each stack the place of its rows and columns in the state,
            or None.
        measurements: The plan of the measurements.
        step_scale: Minus the factor s of each matrix on its norm's `lmo`,
            times its rate's multiplier, `(matrices,)` float32; 0 where the
            role has no norm.
        placements: Placement of each updated variable's weights on devices,
            by the backend's `layouts`.
    """

    norms: Mapping[str, Norm]
    stacks: tuple[tuple[Stack, np.ndarray], ...]
    lines: tuple[Lines | None, ...]
    measurements: MeasurementPlan
    step_scale: np.ndarray
    placements: tuple[Any, ...]

    def gather(self, stack: Stack, tensors: Mapping[int, Tensor]) -> Tensor:
        """The matrices of a stack, `(n, rows, columns)`.

        Args:
            stack: A stack of whole variables.
            tensors: One per variable of the stack, by its position.
        """
        indices = stack.indices
        found = backend.laid_out(
            [tensors[i] for i in indices], [self.placements[i] for i in indices]
        )
        return stack.gather(dict(zip(indices, found, strict=True)))

    def temporary_bytes(self) -> int:
        """The most that one stack or chunk needs beyond the state."""
        work = [len(s) * temporary_bytes(s) for s, _ in self.stacks]
        for group in self.measurements.groups:
            work.append(group.size * temporary_bytes(group.chunks[0]))
        return max(work, default=0)


def plan_work(
    layout: VariableLayout,
    variables: Sequence[Any],
    norms: Mapping[str, Norm],
    scale_of: Callable[[VariableSpec], float],
    noise: NoiseAdaptiveRate | None,
    *,
    max_bytes: int,
    devices: Devices | None,
) -> WorkPlan:
    """The plan of an optimizer's work.

    Args:
        layout: The variables.
        variables: The updated variables.
        norms: Norm of each role that has one.
        scale_of: Step scale of a variable whose role has a norm.
        noise: The part that measures noise, or None.
        max_bytes: Memory for the temporaries of one stack.
        devices: Devices that share out the work.
    """
    stacks = equal_stacks(
        layout.specs, {role: norm.orientation for role, norm in norms.items()}
    )
    groups = (
        make_groups(
            stacks,
            interval=noise.interval,
            staggered=noise.schedule == "staggered",
            max_bytes=max_bytes,
            gathers_whole=is_gathered_whole if devices is None else _never,
            line_roles=noise.line_roles,
        )
        if noise
        else ()
    )
    places = [None] * len(layout.specs)
    if devices:
        # A piece of a variable that is split over devices lies anywhere.
        found = backend.layouts(variables)
        cuts = [spec.pieces for spec in layout.updated_specs]
        places = [
            place if len(cut) == 1 else None
            for place, cut in zip(found, cuts, strict=True)
            for _ in cut
        ]
    pieces = _cut_stacks(layout, stacks, max_bytes, devices)
    dual_scale = _per_variable(
        layout, norms, lambda s: norms[s.role].dual_scale(s.d_in, s.d_out)
    )
    measurements = plan_measurements(
        layout, groups, dual_scale[layout.variable_of_matrix]
    )
    step_scale = -_per_variable(layout, norms, scale_of)
    step_scale *= np.asarray(layout.rate_multipliers, "float64")
    return WorkPlan(
        norms=norms,
        stacks=tuple(pieces),
        lines=tuple(lines_of(*one, measurements.placement) for one in pieces),
        measurements=measurements,
        step_scale=step_scale[layout.variable_of_matrix].astype("float32"),
        placements=tuple(places),
    )


def _never(stack: Stack) -> bool:
    """Whole stacks are not gathered where devices share out the work."""
    return False


def _cut_stacks(
    layout: VariableLayout,
    stacks: Sequence[Stack],
    max_bytes: int,
    devices: Devices | None,
) -> list[tuple[Stack, np.ndarray]]:
    return [
        (piece, positions(piece, layout.specs))
        for stack in stacks
        for piece in stack.cut(
            stack_size(stack, max_bytes, devices), whole_variables=True
        )
    ]


def _per_variable(
    layout: VariableLayout,
    norms: Mapping[str, Norm],
    number_of: Callable[[VariableSpec], float],
) -> np.ndarray:
    """A number of each variable, `(variables,)` float64; 0 without a norm."""
    return np.array(
        [number_of(s) if s.role in norms else 0.0 for s in layout.specs]
    )
