"""The plan of the matrices that are worked on together, made in `build`."""

import dataclasses
from collections.abc import Callable
from collections.abc import Iterator
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
from keras_lanton.norms.norms import Rule
from keras_lanton.norms.norms import norm_of
from keras_lanton.orthogonalization.batching import is_gathered_whole
from keras_lanton.orthogonalization.batching import stack_size
from keras_lanton.types import Tensor
from keras_lanton.variables.layout import VariableLayout
from keras_lanton.variables.spec import VariableSpec
from keras_lanton.variables.stacks import Stack
from keras_lanton.variables.stacks import equal_stacks
from keras_lanton.variables.stacks import positions

backend = backends.load()


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class WorkStack:
    """Matrices that are updated together.

    Args:
        stack: The matrices.
        norm: Their norm, in the orientation of the stack.
        matrices: Their positions among all matrices, `(n,)` int32.
        lines: The place of their rows and columns in the state, or None.
    """

    stack: Stack
    norm: Norm
    matrices: np.ndarray
    lines: Lines | None


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class WorkPlan:
    """The matrices that one step works on together.

    Args:
        stacks: Stacks that are updated together.
        measurements: The plan of the measurements.
        step_scale: Minus the factor s of each matrix on its norm's `lmo`,
            times its rate's multiplier, `(matrices,)` float32; 0 where the
            role has no rule.
        placements: Placement of each updated variable's weights on devices,
            by the backend's `layouts`.
    """

    stacks: tuple[WorkStack, ...]
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
        work = [(len(w.stack), w.stack, w.norm) for w in self.stacks]
        work += [(g.size, g.stack, g.norm) for g in self.measurements.groups]
        needed = (
            count * norm.temporary_bytes(stack.rows, stack.columns)
            for count, stack, norm in work
        )
        return int(max(needed, default=0))


def plan_work(
    layout: VariableLayout,
    variables: Sequence[Any],
    rules: Mapping[str, Rule],
    noise: NoiseAdaptiveRate | None,
    *,
    max_bytes: int,
    devices: Devices | None,
) -> WorkPlan:
    """The plan of an optimizer's work.

    Args:
        layout: The variables.
        variables: The updated variables.
        rules: Rule of each role that has one.
        noise: The part that measures noise, or None.
        max_bytes: Memory for the temporaries of one stack.
        devices: Devices that share out the work.
    """
    norms = {role: rule.norm for role, rule in rules.items()}
    stacks = equal_stacks(
        layout.specs, {role: norm.orientation for role, norm in norms.items()}
    )
    groups = (
        make_groups(
            stacks,
            norms,
            interval=noise.interval,
            staggered=noise.schedule == "staggered",
            max_bytes=max_bytes,
            gathers_whole=is_gathered_whole if devices is None else _never,
            line_roles=noise.line_roles,
        )
        if noise
        else ()
    )
    dual_scale = _per_variable(
        layout, rules, lambda s: norms[s.role].dual_scale(s.d_in, s.d_out)
    )
    measurements = plan_measurements(
        layout, groups, dual_scale[layout.variable_of_matrix]
    )
    step_scale = -_per_variable(
        layout, rules, lambda s: rules[s.role].step_scale(s)
    )
    step_scale *= np.asarray(layout.rate_multipliers, "float64")
    return WorkPlan(
        stacks=tuple(
            WorkStack(
                stack=part,
                norm=norm,
                matrices=matrices,
                lines=lines_of(part, matrices, measurements.placement),
            )
            for part, norm, matrices in _cut(layout, stacks, norms, max_bytes)
        ),
        measurements=measurements,
        step_scale=step_scale[layout.variable_of_matrix].astype("float32"),
        placements=_placements(layout, variables, devices),
    )


def _never(stack: Stack) -> bool:
    """Whole stacks are not gathered where devices share out the work."""
    return False


def _placements(
    layout: VariableLayout,
    variables: Sequence[Any],
    devices: Devices | None,
) -> tuple[Any, ...]:
    """Each updated variable's placement, by the backend; None anywhere."""
    if devices is None:
        return (None,) * len(layout.specs)
    found = backend.layouts(variables)
    cuts = [spec.pieces for spec in layout.updated_specs]
    # A piece of a variable that is split over devices lies anywhere.
    return tuple(
        place if len(cut) == 1 else None
        for place, cut in zip(found, cuts, strict=True)
        for _ in cut
    )


def _cut(
    layout: VariableLayout,
    stacks: Sequence[Stack],
    norms: Mapping[str, Norm],
    max_bytes: int,
) -> Iterator[tuple[Stack, Norm, np.ndarray]]:
    """Parts of stacks that are worked on at once, whole variables each.

    Each comes with its norm and the positions of its matrices among all.
    """
    for stack in stacks:
        norm = norm_of(norms, stack)
        each = norm.temporary_bytes(stack.rows, stack.columns)
        size = stack_size(stack, max_bytes, each)
        for part in stack.cut(size, whole_variables=True):
            yield part, norm, positions(part, layout.specs)


def _per_variable(
    layout: VariableLayout,
    rules: Mapping[str, Rule],
    number_of: Callable[[VariableSpec], float],
) -> np.ndarray:
    """A number of each variable, `(variables,)` float64; 0 without a rule."""
    return np.array(
        [number_of(s) if s.role in rules else 0.0 for s in layout.specs]
    )
